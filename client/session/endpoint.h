// Parses "phub://host:port", "phub://host" (port 7700) or "host:port", with IPv6 hosts in brackets.
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "phub/status.h"

namespace phub::client {

struct Endpoint {
  std::string host;  // without brackets
  std::uint16_t port = 0;

  std::string ToString() const;  // "host:port", brackets where needed
};

// kInvalidArgument: the message says what is wrong with the text and what is expected.
Result<Endpoint> ParseEndpoint(std::string_view text);

}  // namespace phub::client
