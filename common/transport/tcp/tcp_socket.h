// Cold socket work shared by listening and dialling. Any thread.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/descriptor.h"

namespace phub::transport {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

// "host:port", with IPv6 addresses in brackets.
std::string HostPort(const std::string& host, std::uint16_t port);
// The numeric address, without the port.
std::string AddressText(const SocketAddress& address);
std::uint16_t PortOf(const SocketAddress& address);

// Each once. /etc/hosts may say the same twice of a name, and nobody can listen twice.
std::vector<SocketAddress> Distinct(std::span<const SocketAddress> addresses);

// Every address that host stands for, once, in the system's order. Blocks as long as the resolver
// does. `passive`: for binding; an empty host is then every address of this machine.
absl::StatusOr<std::vector<SocketAddress>> Resolve(const std::string& host, std::uint16_t port,
                                                   bool passive);

// Waits until the socket is readable or writable (POLLIN, POLLOUT). False when time is up.
bool WaitSocket(int socket, short events, TimeNs deadline, const Clock& clock);

}  // namespace phub::transport
