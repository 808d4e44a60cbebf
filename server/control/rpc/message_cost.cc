#include "server/control/rpc/message_cost.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace phub::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::MessageFactory;
using google::protobuf::internal::WireFormatLite;

// Each allocation has a header and is rounded up. Arrays grow by doubling, so half may be unused.
constexpr std::size_t kAllocationBytes = 32;
constexpr std::size_t kElementBytes = 2 * sizeof(std::uint64_t);
constexpr std::size_t kUnknownFieldBytes = 2 * 16;
constexpr std::size_t kStringBytes = sizeof(std::string) + kAllocationBytes;
constexpr int kDepthMax = 32;  // the protocol's messages are a few levels deep

class Walk {
 public:
  Walk(google::protobuf::io::ZeroCopyInputStream& bytes, std::size_t limit)
      : stream_(&bytes), limit_(limit) {}

  // Reads fields up to the end of the message. False: malformed, or above the limit.
  bool Fields(const Descriptor& type, int depth) {
    while (const std::uint32_t tag = stream_.ReadTag()) {
      const FieldDescriptor* const field =
          type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
      if (!Field(field, WireFormatLite::GetTagWireType(tag), depth) || bytes_ > limit_)
        return false;
    }
    return stream_.ConsumedEntireMessage();
  }
  std::size_t bytes() const { return bytes_; }

 private:
  bool Field(const FieldDescriptor* field, WireFormatLite::WireType wire, int depth) {
    std::uint64_t number = 0;
    std::uint32_t small = 0;
    switch (wire) {
      case WireFormatLite::WIRETYPE_VARINT: return Count(field) && stream_.ReadVarint64(&number);
      case WireFormatLite::WIRETYPE_FIXED64:
        return Count(field) && stream_.ReadLittleEndian64(&number);
      case WireFormatLite::WIRETYPE_FIXED32:
        return Count(field) && stream_.ReadLittleEndian32(&small);
      case WireFormatLite::WIRETYPE_LENGTH_DELIMITED: return Delimited(field, depth);
      case WireFormatLite::WIRETYPE_START_GROUP:
      case WireFormatLite::WIRETYPE_END_GROUP: return false;  // the protocol has no groups
    }
    return false;
  }

  bool Count(const FieldDescriptor* field) {
    if (field == nullptr) bytes_ += kUnknownFieldBytes;
    if (field != nullptr && field->is_repeated()) bytes_ += kElementBytes;
    return true;
  }

  bool Delimited(const FieldDescriptor* field, int depth) {
    int length = 0;
    if (!stream_.ReadVarintSizeAsInt(&length)) return false;
    const auto size = static_cast<std::size_t>(length);
    if (field == nullptr || field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      bytes_ += kUnknownFieldBytes + kStringBytes + size;
      return stream_.Skip(length);
    }
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {  // packed numbers
      const auto type = static_cast<WireFormatLite::FieldType>(field->type());
      const bool is_varint =
          WireFormatLite::WireTypeForFieldType(type) == WireFormatLite::WIRETYPE_VARINT;
      bytes_ += kAllocationBytes + size * (is_varint ? kElementBytes : 2);
      return stream_.Skip(length);
    }
    if (depth == kDepthMax) return false;
    bytes_ += kElementBytes + kAllocationBytes + SizeOf(*field->message_type());
    const auto outer = stream_.PushLimit(length);
    const bool read = Fields(*field->message_type(), depth + 1) && stream_.BytesUntilLimit() == 0;
    stream_.PopLimit(outer);
    return read;
  }

  std::size_t SizeOf(const Descriptor& type) {
    for (const auto& [known, size] : sizes_) {
      if (known == &type) return size;
    }
    const auto* const prototype = MessageFactory::generated_factory()->GetPrototype(&type);
    const std::size_t size = prototype == nullptr ? 0 : prototype->SpaceUsedLong();
    return sizes_.emplace_back(&type, size).second;
  }

  google::protobuf::io::CodedInputStream stream_;
  const std::size_t limit_;
  std::size_t bytes_ = 0;
  std::vector<std::pair<const Descriptor*, std::size_t>> sizes_;
};

}  // namespace

std::optional<std::size_t> ParsedBytes(const google::protobuf::Message& type,
                                       google::protobuf::io::ZeroCopyInputStream& bytes,
                                       std::size_t limit) {
  Walk walk(bytes, limit);
  if (walk.Fields(*type.GetDescriptor(), 0) || walk.bytes() > limit) return walk.bytes();
  return std::nullopt;
}

}  // namespace phub::server
