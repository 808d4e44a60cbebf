// An answer as it is sent: its message is freed once it is written, because a caller that does not
// read may keep the answer for long. Only for the files of the services.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>

namespace phub::server {

template <typename Response>
struct Written {
  void Write(const Response& message) {
    bool owns = false;
    grpc::SerializationTraits<Response>::Serialize(message, &bytes, &owns);
  }
  grpc::ByteBuffer bytes;
};

}  // namespace phub::server

template <typename Response>
class grpc::SerializationTraits<phub::server::Written<Response>, void> {
 public:
  static Status Serialize(const phub::server::Written<Response>& from, ByteBuffer* to, bool* owns) {
    *to = from.bytes;  // shares the bytes
    *owns = true;
    return Status::OK;
  }
};
