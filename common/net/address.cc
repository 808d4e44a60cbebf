#include "common/net/address.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/base/check.h"
#include "common/base/descriptor.h"
#include "common/base/errno_text.h"
#include "common/base/shortage.h"

namespace phub::net {
namespace {

absl::Status NotResolved(const std::string& host, int result, int error) {
  const std::string why = result == EAI_SYSTEM ? ErrnoText(error) : gai_strerror(result);
  if (result == EAI_AGAIN || result == EAI_SYSTEM || result == EAI_MEMORY) {
    return absl::UnavailableError(fmt::format(
        "cannot resolve '{}': {}; the name servers in /etc/resolv.conf probably do not answer",
        host, why));
  }
  return absl::NotFoundError(fmt::format(
      "cannot resolve '{}': {}; use a host name that resolves here, or an IP address", host, why));
}

}  // namespace

std::string AddressText(const SocketAddress& address) {
  char text[NI_MAXHOST];
  const int result =
      getnameinfo(address.get(), address.bytes, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return result == 0 ? text : "unknown";
}

std::string AddressAndPortText(const SocketAddress& address) {
  return HostPort(AddressText(address), PortOf(address));
}

std::uint16_t PortOf(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port);
}

void SetPort(SocketAddress& address, std::uint16_t port) {
  if (address.storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address.storage).sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in&>(address.storage).sin_port = htons(port);
  }
}

bool IsLoopback(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET6) {
    const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
  }
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
  return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
}

bool OnlyLoopback(std::span<const SocketAddress> addresses) {
  return std::all_of(addresses.begin(), addresses.end(), IsLoopback);
}

std::string ListText(std::span<const SocketAddress> addresses) {
  std::string text;
  for (const SocketAddress& address : addresses) {
    text += fmt::format("{}{}", text.empty() ? "" : ",", AddressAndPortText(address));
  }
  return text;
}

SocketAddress BoundAddress(int socket) {
  SocketAddress bound;
  bound.bytes = sizeof bound.storage;
  PHUB_CHECK(getsockname(socket, bound.get(), &bound.bytes) == 0, "errno={}", errno);
  return bound;
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
  if (result != 0) return NotResolved(host, result, errno);
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
    return absl::NotFoundError(fmt::format("'{}' has no IPv4 or IPv6 address", host));
  }
  return Distinct(addresses);
}

absl::StatusOr<std::string> AddressTowards(const std::string& host, std::uint16_t port) {
  const auto addresses = Resolve(host, port, /*passive=*/false);
  if (!addresses.ok()) return absl::UnavailableError(addresses.status().message());
  const SocketAddress& there = addresses->front();
  const Descriptor socket(
      ::socket(there.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));  // nothing is sent
  if (socket.get() < 0) return DescriptorShortage("find the address towards " + host, errno);
  if (connect(socket.get(), there.get(), there.bytes) == 0)
    return AddressText(BoundAddress(socket.get()));
  return absl::UnavailableError(
      fmt::format("this host cannot reach {}: {}", AddressText(there), ErrnoText(errno)));
}

}  // namespace phub::net
