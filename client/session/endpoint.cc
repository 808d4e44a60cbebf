#include "client/session/endpoint.h"

#include <fmt/core.h>

#include <charconv>

namespace phub::client {
namespace {

constexpr std::string_view kScheme = "phub://";

Status Bad(std::string_view text, std::string_view why) {
  return Status(StatusCode::kInvalidArgument,
                fmt::format("endpoint '{}': {}; write phub://HOST:PORT", text, why));
}

}  // namespace

std::string Endpoint::ToString() const {
  if (host.find(':') != std::string::npos) return fmt::format("[{}]:{}", host, port);
  return fmt::format("{}:{}", host, port);
}

Result<Endpoint> ParseEndpoint(std::string_view text) {
  std::string_view rest = text;
  if (rest.starts_with(kScheme))
    rest.remove_prefix(kScheme.size());
  else if (rest.find("://") != std::string_view::npos)
    return Bad(text, "the scheme must be phub://");
  const std::size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos) return Bad(text, "the port is missing");
  std::string_view host = rest.substr(0, colon);
  const std::string_view digits = rest.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']'))
    host = host.substr(1, host.size() - 2);
  else if (host.find(':') != std::string_view::npos)
    return Bad(text, "an IPv6 address must be in brackets");
  if (host.empty()) return Bad(text, "the host is missing");
  if (host.find_first_of("/[] ") != std::string_view::npos)
    return Bad(text, "the host contains an invalid character");
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size() || port == 0)
    return Bad(text, fmt::format("'{}' is not a port number (1 to 65535)", digits));
  return Endpoint{.host = std::string(host), .port = port};
}

}  // namespace phub::client
