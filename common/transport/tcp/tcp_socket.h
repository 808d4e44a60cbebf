// Socket helpers for listening and dialling, off the data path. Any thread.
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

// Removes duplicates. /etc/hosts may list an address twice for a name, and the second bind would
// fail.
std::vector<SocketAddress> Distinct(std::span<const SocketAddress> addresses);

// Resolves a host to its addresses, without duplicates, in the system's order. Blocks as long as
// the resolver does. `passive`: for binding; an empty host then means every address of this
// machine.
absl::StatusOr<std::vector<SocketAddress>> Resolve(const std::string& host, std::uint16_t port,
                                                   bool passive);

// Creates a socket for a lane, or to listen for lanes: non-blocking, not connected, and with CUBIC
// instead of BBR. Empty, with errno, if the system refuses.
//
// BBR is made for long and lossy paths. If lanes share a link, BBR lets some of them run ahead for
// tens of milliseconds, but a round ends only when its last gradient arrives. BBR's pacing also
// costs CPU. CUBIC shares the link more evenly and is the default of most hosts (bench/NOTES.md
// compares both). Other algorithms, such as DCTCP, are not changed; neither is BBR on a host that
// has no CUBIC.
Descriptor LaneSocket(sa_family_t family);

// Waits until the socket is readable or writable (POLLIN, POLLOUT). False when time is up.
bool WaitSocket(int socket, short events, TimeNs deadline, const Clock& clock);

}  // namespace phub::transport
