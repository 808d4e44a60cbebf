#include "client/session/control_target.h"

#include <fmt/format.h>

#include <charconv>
#include <vector>

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

absl::StatusOr<HostAndPort> SplitTarget(std::string_view target) {
  const std::size_t colon = target.rfind(':');
  HostAndPort parts;
  if (colon != std::string_view::npos) {
    std::string_view host = target.substr(0, colon);
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    parts.host = host;
    const std::string_view digits = target.substr(colon + 1);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), parts.port);
    if (error != std::errc() || end != digits.data() + digits.size()) parts.port = 0;
  }
  if (parts.host.empty() || parts.port == 0) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is not a daemon's address; write HOST:PORT", target));
  }
  return parts;
}

absl::StatusOr<std::string> ResolvedTarget(const std::string& target) {
  if (target.starts_with(kUnixScheme)) return target;
  const absl::StatusOr<HostAndPort> parts = SplitTarget(target);
  if (!parts.ok()) return parts.status();
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
