#include "common/transport/tcp/tcp_socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string_view>

#include "common/base/errno_text.h"

namespace phub::transport {

std::string HostPort(const std::string& host, std::uint16_t port) {
  const bool brackets = host.find(':') != std::string::npos;
  return brackets ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

std::string AddressText(const SocketAddress& address) {
  char text[NI_MAXHOST];
  const int result =
      getnameinfo(address.get(), address.bytes, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return result == 0 ? text : "unknown";
}

std::uint16_t PortOf(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port);
}

std::vector<SocketAddress> Distinct(std::span<const SocketAddress> addresses) {
  std::vector<SocketAddress> distinct;
  for (const SocketAddress& address : addresses) {
    const bool known = std::any_of(distinct.begin(), distinct.end(), [&](const auto& each) {
      return each.bytes == address.bytes &&
             std::memcmp(&each.storage, &address.storage, address.bytes) == 0;
    });
    if (!known) distinct.push_back(address);
  }
  return distinct;
}

absl::StatusOr<std::vector<SocketAddress>> Resolve(const std::string& host, std::uint16_t port,
                                                   bool passive) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const std::string service = std::to_string(port);
  const int result =
      getaddrinfo(host.empty() ? nullptr : host.c_str(), service.c_str(), &hints, &found);
  if (result != 0) {
    return absl::InvalidArgumentError(
        fmt::format("cannot resolve '{}': {}; use a host name that resolves here, or an IP address",
                    host, result == EAI_SYSTEM ? ErrnoText(errno) : gai_strerror(result)));
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    if (info->ai_family != AF_INET && info->ai_family != AF_INET6) continue;
    SocketAddress address;
    std::memcpy(&address.storage, info->ai_addr, info->ai_addrlen);
    address.bytes = info->ai_addrlen;
    addresses.push_back(address);
  }
  freeaddrinfo(found);
  if (addresses.empty()) {
    return absl::InvalidArgumentError(fmt::format("'{}' has no IPv4 or IPv6 address", host));
  }
  return Distinct(addresses);
}

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

bool WaitSocket(int socket, short events, TimeNs deadline, const Clock& clock) {
  for (;;) {
    const DurationNs left = deadline - clock.Now();
    if (left <= 0) return false;
    // Rounded up, so that the last millisecond is not a busy loop.
    const DurationNs left_ms = left / kMillisecond + 1;
    pollfd item{socket, events, 0};
    const int result = poll(
        &item, 1, static_cast<int>(std::min<DurationNs>(left_ms, std::numeric_limits<int>::max())));
    if (result > 0) return true;
    if (result < 0 && errno != EINTR) return true;  // the next call on the socket reports the error
  }
}

}  // namespace phub::transport
