// Hosts and ports as people write them: "127.0.0.1:7700", "[::1]:7700", "node5:0". Pure; any
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace phub::net {

struct HostAndPort {
  std::string host;  // a name or an address, without brackets
  std::uint16_t port = 0;
};

// InvalidArgument: the message continues "<what> ...", for example "has no port; write ...".
absl::StatusOr<HostAndPort> ParseHostAndPort(std::string_view text);
// "host:port", with IPv6 addresses in brackets.
std::string HostPort(const std::string& host, std::uint16_t port);

// What counts as one peer: an IPv4 address, or the network of 64 bits of an IPv6 address
// ("2001:db8:0:1::/64"), whose owner has all its addresses. `address`: with or without a port.
// Other text is returned as it is.
std::string AddressBlock(std::string_view address);

// True for an IPv4 or IPv6 address, false for a name.
bool IsNumeric(const std::string& host);
// True for 127.0.0.0/8, ::1 and "localhost"; any other name may resolve to any address.
bool IsLoopbackHost(std::string_view host);

}  // namespace phub::net
