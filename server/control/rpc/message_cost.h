// How much memory a message needs once it is parsed, from its bytes alone. Parsing can need a
// hundred times as much as the bytes: a submessage without content has two bytes on the wire.
#pragma once

#include <google/protobuf/io/zero_copy_stream.h>
#include <google/protobuf/message.h>

#include <cstddef>
#include <optional>

namespace phub::server {

// An upper bound of what the parsed message allocates, besides itself; stops above `limit`.
// nullopt: the bytes are not such a message. `type`: any message of that type.
std::optional<std::size_t> ParsedBytes(const google::protobuf::Message& type,
                                       google::protobuf::io::ZeroCopyInputStream& bytes,
                                       std::size_t limit);

}  // namespace phub::server
