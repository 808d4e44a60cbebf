// Names and addresses of hosts. The system's resolver is used everywhere, so phub and `getent` find
// the same addresses. Any thread; Resolve() may block.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/net/host_port.h"

namespace phub::net {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

// The numeric address, without the port; a link-local address with its scope ("fe80::1%eth0").
std::string AddressText(const SocketAddress& address);
// "10.0.0.1:7700", "[::1]:7700".
std::string AddressAndPortText(const SocketAddress& address);
std::uint16_t PortOf(const SocketAddress& address);
void SetPort(SocketAddress& address, std::uint16_t port);
bool IsLoopback(const SocketAddress& address);
bool OnlyLoopback(std::span<const SocketAddress> addresses);
// "10.0.0.1:7700,[fd00::1]:7700"
std::string ListText(std::span<const SocketAddress> addresses);
// The address that the socket is bound to.
SocketAddress BoundAddress(int socket);

// Removes duplicates. /etc/hosts may list an address twice for a name, and the second bind would
// fail.
std::vector<SocketAddress> Distinct(std::span<const SocketAddress> addresses);

// Resolves a host to its addresses, without duplicates, in the system's order. Blocks as long as
// the resolver does. `passive`: for binding; an empty host then means every address of this
// machine. kNotFound: the name does not exist. kUnavailable: the resolver does not answer now.
absl::StatusOr<std::vector<SocketAddress>> Resolve(const std::string& host, std::uint16_t port,
                                                   bool passive);

// The numeric address, without a port, from which this host sends to the first address of `host`.
// Sends nothing. kUnavailable: no route, or as Resolve().
absl::StatusOr<std::string> AddressTowards(const std::string& host, std::uint16_t port);

}  // namespace phub::net
