#include "server/control/ports/listening_sockets.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "common/base/check.h"
#include "common/transport/tcp/tcp_socket.h"

namespace phub::server {
namespace {

using transport::SocketAddress;

constexpr int kBacklog = 1024;
// gRPC sets the same value on its own listening sockets: a connection is closed if the peer does
// not acknowledge data for this long.
constexpr int kUserTimeoutMs = 5'000;

// On failure: no descriptor, and errno is set.
Descriptor Listen(const SocketAddress& address) {
  Descriptor listening(
      socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  // Accepted sockets inherit these options.
  if (!listening || setsockopt(listening.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      setsockopt(listening.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 ||
      setsockopt(listening.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMs,
                 sizeof kUserTimeoutMs) != 0 ||
      bind(listening.get(), address.get(), address.bytes) != 0 ||
      listen(listening.get(), kBacklog) != 0) {
    return {};
  }
  return listening;
}

void SetPort(SocketAddress& address, std::uint16_t port) {
  if (address.storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address.storage).sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in&>(address.storage).sin_port = htons(port);
  }
}

}  // namespace

absl::StatusOr<ListeningSockets> ListenForControl(const std::string& host, std::uint16_t port) {
  auto addresses = transport::Resolve(host, port, /*passive=*/true);
  if (!addresses.ok()) return addresses.status();
  ListeningSockets listening{.sockets = {}, .port = port};
  bool taken = false;
  for (SocketAddress& address : *addresses) {
    if (listening.port != 0) SetPort(address, listening.port);
    Descriptor made = Listen(address);
    taken = taken || (!made && errno == EADDRINUSE);
    if (!made) continue;  // for example ::1 of localhost on a host without IPv6
    SocketAddress bound;
    bound.bytes = sizeof bound.storage;
    PHUB_CHECK(getsockname(made.get(), bound.get(), &bound.bytes) == 0, "errno={}", errno);
    listening.port = transport::PortOf(bound);
    listening.sockets.push_back(std::move(made));
  }
  if (listening.sockets.empty() || taken) {
    return absl::UnavailableError(
        fmt::format("cannot listen on {} for control connections: the address does not belong to "
                    "this host, or another process (probably another phubd) uses the port",
                    transport::HostPort(host, port)));
  }
  return listening;
}

}  // namespace phub::server
