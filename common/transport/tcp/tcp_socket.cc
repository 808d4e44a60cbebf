#include "common/transport/tcp/tcp_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cstring>
#include <string_view>

namespace phub::transport {

Descriptor LaneSocket(sa_family_t family) {
  Descriptor socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return socket;
  // Must happen before the socket is connected: otherwise BBR's pacing stays on. Accepted sockets
  // inherit the algorithm.
  char name[16] = {};  // TCP_CA_NAME_MAX
  socklen_t bytes = sizeof name;
  if (getsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, name, &bytes) != 0) return socket;
  if (!std::string_view(name, strnlen(name, sizeof name)).starts_with("bbr")) return socket;
  constexpr std::string_view kCubic = "cubic";
  // Fails if the host does not allow it; the socket then keeps BBR.
  [[maybe_unused]] const int result =
      setsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, kCubic.data(), kCubic.size());
  return socket;
}

}  // namespace phub::transport
