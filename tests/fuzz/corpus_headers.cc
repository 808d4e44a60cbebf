#include <utility>

#include "common/base/check.h"
#include "common/wire/message.h"
#include "tests/fuzz/corpus.h"

namespace phub::fuzz {

using wire::MessageHeader;
using wire::MessageKind;
using wire::RoundOperation;

void AddNearMisses(Files& files, const std::string& target, const std::vector<std::byte>& valid,
                   std::initializer_list<std::size_t> places) {
  for (const std::size_t at : places) {
    File file{target + "/byte-" + std::to_string(at), valid};
    file.bytes[at] ^= std::byte{0xFF};
    files.push_back(std::move(file));
  }
  File cut{target + "/cut", valid};
  cut.bytes.pop_back();
  files.push_back(std::move(cut));
  File longer{target + "/longer", valid};
  longer.bytes.push_back(std::byte{0});
  files.push_back(std::move(longer));
  files.push_back({target + "/empty", {}});
}

std::vector<std::byte> Encoded(const MessageHeader& header) {
  std::vector<std::byte> bytes(wire::kHeaderBytes);
  EncodeHeader(header, std::span<std::byte, wire::kHeaderBytes>(bytes));
  MessageHeader decoded;
  PHUB_CHECK(DecodeHeader(bytes, decoded) == wire::DecodeError::kNone);
  return bytes;
}

namespace {

void AddPooled(Files& files) {
  MessageHeader header;
  header.kind = MessageKind::kGradient;
  header.version = wire::kPoolMoveVersion;
  header.operation = RoundOperation::kPool;
  header.pool = {.elements = 1000,
                 .sequence = 7 | 3u << wire::kPoolSequenceBits,
                 .reduction = numeric::Reduction::kBitwiseXor};
  header.type = numeric::ElementType::kI32;
  header.payload_bytes = 4000;
  files.push_back({"message_header/pooled", Encoded(header)});
  header.operation = RoundOperation::kPoolMove;
  header.pool.reduction = {};
  header.root = {2};
  files.push_back({"message_header/pooled-move", Encoded(header)});
}

}  // namespace

void AddMessageHeaders(Files& files) {
  MessageHeader header;
  header.kind = MessageKind::kGradient;
  header.payload_bytes = 64 * 1024;
  header.incarnation = {0x0123456789abcdef};
  header.iteration = {1};
  header.membership_epoch = {1};
  header.chunk = {2};
  header.slot = {3};
  header.hyper_version = {1};
  header.key = {4};
  files.push_back({"message_header/gradient", Encoded(header)});
  AddNearMisses(files, "message_header", Encoded(header), {0, 1, 2, 3, 4, 7, 48, 49, 63});
  header.operation = RoundOperation::kAssign;
  header.root = {5};
  header.payload_bytes = 0;
  files.push_back({"message_header/assign", Encoded(header)});
  header = {};
  header.kind = MessageKind::kParameters;
  header.payload_bytes = kChunkBytesMax;
  header.iteration = Iteration::Max();
  files.push_back({"message_header/parameters", Encoded(header)});
  header = {};
  header.kind = MessageKind::kCredit;
  files.push_back({"message_header/credit", Encoded(header)});
  header.kind = MessageKind::kHyperParameters;
  header.payload_bytes = wire::kHyperParametersBytes;
  files.push_back({"message_header/record", Encoded(header)});
  AddPooled(files);
}

}  // namespace phub::fuzz
