// A minimal HTTP client for ports of this host, and sockets of misbehaving clients.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/descriptor.h"

namespace phub::testing {

// A connection to 127.0.0.1, or no descriptor if it is refused.
Descriptor ConnectTo(std::uint16_t port);
bool SendText(const Descriptor& socket, std::string_view text);
// Reads until the other side closes, or until the timeout. Returns what arrived.
std::string ReadToEnd(const Descriptor& socket, DurationNs timeout, bool* closed = nullptr);

struct HttpAnswer {
  int code = 0;  // 0: no answer
  std::string head;
  std::string body;
};
// One request on its own connection.
HttpAnswer AskHttp(std::uint16_t port, std::string_view request, DurationNs timeout);
HttpAnswer GetMetrics(std::uint16_t port, DurationNs timeout = 20 * kSecond);

}  // namespace phub::testing
