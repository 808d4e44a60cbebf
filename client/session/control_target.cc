#include "client/session/control_target.h"

#include <fmt/format.h>

#include <vector>

#include "common/base/status_text.h"
#include "common/net/dial.h"

namespace phub::client {
namespace {

// The address as a part of a URI; there, brackets and the '%' of a scope are escaped.
std::string UriText(const net::SocketAddress& address) {
  std::string text;
  for (const char c : net::AddressAndPortText(address)) {
    switch (c) {
      case '[': text += "%5B"; break;
      case ']': text += "%5D"; break;
      case '%': text += "%25"; break;
      default: text += c;
    }
  }
  return text;
}

// Moves the address that answers first to the front.
void PutAnsweringFirst(std::vector<net::SocketAddress>& addresses, const std::string& target) {
  if (addresses.size() < 2) return;
  const SystemClock clock;
  const auto dialled =
      net::DialFirst(addresses, target, {clock, clock.Now() + kChoiceTimeout, kChoiceTimeout});
  if (!dialled.ok()) return;
  addresses.insert(addresses.begin(), dialled->address);
  addresses = net::Distinct(addresses);
}

}  // namespace

absl::StatusOr<std::string> ResolvedTarget(const std::string& target) {
  if (target.starts_with(kUnixScheme)) return target;
  const absl::StatusOr<net::HostAndPort> parts = net::ParseHostAndPort(target);
  if (!parts.ok()) {
    return absl::InvalidArgumentError(
        fmt::format("the daemon's address \"{}\" {}", target, MessageOf(parts.status())));
  }
  absl::StatusOr<std::vector<net::SocketAddress>> addresses =
      net::Resolve(parts->host, parts->port, /*passive=*/false);
  if (!addresses.ok()) return addresses.status();
  PutAnsweringFirst(*addresses, target);
  const sa_family_t family = addresses->front().storage.ss_family;
  std::string list;
  for (const net::SocketAddress& each : *addresses) {
    if (each.storage.ss_family != family) continue;
    list += fmt::format("{}{}", list.empty() ? "" : ",", UriText(each));
  }
  return fmt::format("{}:{}", family == AF_INET6 ? "ipv6" : "ipv4", list);
}

}  // namespace phub::client
