#include "client/session/sum_sockets.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/status/statusor.h"
#include "common/aggregation/endpoint_text.h"
#include "common/base/descriptor.h"
#include "common/base/log.h"
#include "common/base/status_text.h"
#include "common/net/address.h"

namespace phub::client {
namespace {

// This host's address on the way to a daemon. Sends nothing: connecting a datagram socket only
// looks for the route.
absl::StatusOr<sockaddr_storage> AddressTowards(const DaemonLink& link) {
  const v1::CoreEndpoint& core = link.joined.cores(0);
  const std::string host = core.host().empty() ? link.endpoint.host : core.host();
  const auto found = net::Resolve(host, static_cast<std::uint16_t>(core.port()), false);
  if (!found.ok()) return found.status();
  const net::SocketAddress& daemon = found->front();
  const Descriptor probe(socket(daemon.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t bytes = sizeof own;
  if (probe.get() < 0 ||
      connect(probe.get(), reinterpret_cast<const sockaddr*>(&daemon.storage), daemon.bytes) != 0 ||
      getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own), &bytes) != 0)
    return absl::UnavailableError(std::generic_category().message(errno));
  return own;
}

socklen_t BytesOf(const sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

void ClearPort(sockaddr_storage& address) {
  if (address.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address).sin6_port = 0;
  } else {
    reinterpret_cast<sockaddr_in&>(address).sin_port = 0;
  }
}

absl::StatusOr<std::vector<aggregation::DatagramSocket>> OpenFor(const DaemonLinks& links) {
  std::vector<aggregation::DatagramSocket> sockets;
  for (const auto& link : links) {
    auto address = AddressTowards(*link);
    if (!address.ok()) return address.status();
    ClearPort(*address);
    for (int core = 0; core < link->joined.cores_size(); ++core) {
      auto bound = aggregation::DatagramSocket::Bind(*address, BytesOf(*address));
      if (!bound.ok()) return bound.status();
      sockets.push_back(*std::move(bound));
    }
  }
  return sockets;
}

}  // namespace

void SumSockets::Open(const DaemonLinks& links) {
  const bool wanted =
      std::ranges::any_of(links, [](const auto& link) { return link->joined.sum_streams(); });
  if (!wanted) return;
  auto opened = OpenFor(links);
  if (opened.ok()) {
    sockets_ = *std::move(opened);
  } else {
    LogWarning("event=sum_sockets_refused reason=\"{}\" effect=\"gradients go over tcp\"",
               MessageOf(opened.status()));
  }
}

std::vector<aggregation::DatagramSocket*> SumSockets::list() {
  std::vector<aggregation::DatagramSocket*> list;
  for (aggregation::DatagramSocket& each : sockets_) list.push_back(&each);
  return list;
}

std::vector<std::string> SumSockets::endpoints() const {
  std::vector<std::string> texts;
  for (const aggregation::DatagramSocket& each : sockets_)
    texts.push_back(aggregation::TextOf(each.endpoint()));
  return texts;
}

}  // namespace phub::client
