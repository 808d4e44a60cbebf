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

// For a lane, or to listen for lanes: non-blocking, not yet connected, and not under BBR's control.
// Empty, with errno, if the system gives none.
//
// BBR is made for long and lossy ways. Of lanes that share a link it lets some run ahead for tens
// of milliseconds, and a round ends when its last gradient is there; what it paces costs CPU, too.
// CUBIC keeps them together, and is what most hosts have anyway (bench/NOTES.md has both). Other
// algorithms that a host was given stay, such as DCTCP; so does BBR where CUBIC is not to be had.
Descriptor LaneSocket(sa_family_t family);

// Waits until the socket is readable or writable (POLLIN, POLLOUT). False when time is up.
bool WaitSocket(int socket, short events, TimeNs deadline, const Clock& clock);

}  // namespace phub::transport
