// Makes untrusted text safe for messages, logs and terminals.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

namespace phub {

// Replaces control characters (terminal escapes) and bytes that are not valid UTF-8 (protobuf
// rejects them) with '?'. A result longer than bytes_max is cut between characters and ends in
// "...". REQUIRES: bytes_max >= 3.
std::string Printable(std::string_view text,
                      std::size_t bytes_max = std::numeric_limits<std::size_t>::max());

}  // namespace phub
