#include "common/net/listen.h"

#include <fmt/format.h>
#include <netinet/in.h>

#include <cerrno>
#include <utility>

#include "common/base/errno_text.h"

namespace phub::net {
namespace {

// With port 0, the port that the kernel chose for the first address may be in use at another one.
constexpr int kPortTries = 8;

Descriptor ListenAt(const SocketAddress& address, bool only_v6, const ListenOptions& options) {
  Descriptor socket = options.make(address.storage.ss_family);
  const int on = 1;
  if (!socket || setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) return {};
  // Otherwise :: would also take the port of IPv4's addresses, which have sockets of their own.
  if (only_v6 && address.storage.ss_family == AF_INET6 &&
      setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on) != 0) {
    return {};
  }
  if ((options.prepare && !options.prepare(socket.get())) ||
      bind(socket.get(), address.get(), address.bytes) != 0 ||
      listen(socket.get(), options.backlog) != 0) {
    return {};
  }
  return socket;
}

struct Try {
  Listening listening;
  std::string causes;
  bool taken = false;
};

Try ListenAtAll(const std::vector<SocketAddress>& addresses, std::uint16_t port,
                const ListenOptions& options) {
  Try result;
  result.listening.port = port;
  for (SocketAddress address : addresses) {
    SetPort(address, result.listening.port);
    Descriptor socket = ListenAt(address, addresses.size() > 1, options);
    if (!socket) {
      result.taken = result.taken || errno == EADDRINUSE;
      result.causes += fmt::format("{}{}: {}", result.causes.empty() ? "" : "; ",
                                   AddressText(address), ErrnoText(errno));
      continue;
    }
    result.listening.addresses.push_back(BoundAddress(socket.get()));
    result.listening.port = PortOf(result.listening.addresses.back());
    result.listening.sockets.push_back(std::move(socket));
  }
  return result;
}

}  // namespace

absl::StatusOr<Listening> Listen(const std::string& host, std::uint16_t port,
                                 const ListenOptions& options) {
  const absl::StatusOr<std::vector<SocketAddress>> addresses =
      Resolve(host, port, /*passive=*/true);
  if (!addresses.ok()) return addresses.status();
  Try result = ListenAtAll(*addresses, port, options);
  for (int i = 1; i < kPortTries && port == 0 && result.taken; ++i) {
    result = ListenAtAll(*addresses, port, options);
  }
  if (result.listening.sockets.empty() || result.taken) {
    return absl::UnavailableError(
        fmt::format("cannot listen on {} ({}); {}", HostPort(host, port), result.causes,
                    result.taken ? "choose another port, or stop the process that uses it"
                                 : "choose an address of this host"));
  }
  return std::move(result.listening);
}

}  // namespace phub::net
