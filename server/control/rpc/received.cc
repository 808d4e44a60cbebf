#include "server/control/rpc/received.h"

#include <fmt/format.h>

#include <optional>
#include <string>

#include "server/tenant/ledger.h"

namespace phub::server {

ParseResult ParseRequest(grpc::ByteBuffer& bytes, google::protobuf::Message& request,
                         std::size_t bytes_max) {
  const ParseResult invalid{absl::InvalidArgumentError(fmt::format(
      "the request is not a {} message", std::string(request.GetDescriptor()->full_name())))};
  if (!bytes.Valid()) return invalid;
  std::optional<std::size_t> needed;
  {
    grpc::ProtoBufferReader reader(&bytes);
    if (reader.status().ok()) needed = ParsedBytes(request, reader, bytes_max);
  }
  if (!needed.has_value()) return invalid;
  if (*needed > bytes_max) {
    return {absl::ResourceExhaustedError(
                fmt::format("this request of {} would need more than {} of memory, the limit for "
                            "requests of its kind; split it, for example into smaller batches of "
                            "keys",
                            FormatBytes(bytes.Length()), FormatBytes(bytes_max))),
            ControlCounter::requests_refused_size};
  }
  bool parsed = false;
  {
    grpc::ProtoBufferReader reader(&bytes);
    parsed = reader.status().ok() && request.ParseFromZeroCopyStream(&reader);
  }
  bytes.Clear();
  return parsed ? ParseResult{} : invalid;
}

}  // namespace phub::server
