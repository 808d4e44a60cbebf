// A request as it arrived: gRPC keeps its bytes, and it is parsed only after the caller was let in
// and if it does not need too much memory. Only for the files of the services.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "server/control/counters.h"
#include "server/control/rpc/message_cost.h"

namespace phub::server {

// What a parsed request may need: one with many keys or pieces, and any other.
inline constexpr std::size_t kLargeRequestBytesMax = 64 << 20;
inline constexpr std::size_t kRequestBytesMax = 16 << 20;

struct ParseResult {
  absl::Status status;
  ControlCounter refused = ControlCounter::requests_refused_invalid;  // to increment if !ok()
};
// Parses the bytes and frees them.
ParseResult ParseRequest(grpc::ByteBuffer& bytes, google::protobuf::Message& request,
                         std::size_t bytes_max = kRequestBytesMax);

template <typename Request>
struct Received {
  mutable grpc::ByteBuffer bytes;  // taken by the first parse
};

}  // namespace phub::server

template <typename Request>
class grpc::SerializationTraits<phub::server::Received<Request>, void> {
 public:
  // Takes over the buffer: gRPC forgets it afterwards without freeing it.
  static Status Deserialize(ByteBuffer* buffer, phub::server::Received<Request>* to) {
    to->bytes.Clear();
    to->bytes.Swap(buffer);
    return Status::OK;
  }
};
