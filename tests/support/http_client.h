// The least that speaks HTTP to a port of this host, and the sockets of clients that misbehave.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/descriptor.h"

namespace phub::testing {

// A connection to 127.0.0.1; none if it is refused.
Descriptor ConnectTo(std::uint16_t port);
bool SendText(const Descriptor& socket, std::string_view text);
// All until the other side closes; what came until then if the time is up.
std::string ReadToEnd(const Descriptor& socket, DurationNs timeout, bool* closed = nullptr);

struct HttpAnswer {
  int code = 0;  // 0: no answer
  std::string head;
  std::string body;
};
// One request on a connection of its own.
HttpAnswer AskHttp(std::uint16_t port, std::string_view request, DurationNs timeout);
HttpAnswer GetMetrics(std::uint16_t port, DurationNs timeout = 20 * kSecond);

}  // namespace phub::testing
