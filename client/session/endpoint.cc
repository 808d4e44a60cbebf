#include "client/session/endpoint.h"

#include <fmt/core.h>

#include "common/base/status_text.h"
#include "common/net/host_port.h"

namespace phub::client {
namespace {

constexpr std::string_view kScheme = "phub://";
constexpr std::uint16_t kDefaultPort = 7700;

Status Bad(std::string_view text, std::string_view why) {
  return Status(StatusCode::kInvalidArgument,
                fmt::format("endpoint '{}' {}; write phub://HOST:PORT", text, why));
}

}  // namespace

std::string Endpoint::ToString() const { return net::HostPort(host, port); }

Result<Endpoint> ParseEndpoint(std::string_view text) {
  std::string_view rest = text;
  std::string with_port;
  if (rest.starts_with(kScheme)) {
    rest.remove_prefix(kScheme.size());
    // "phub://rack7", "phub://[::1]"
    if (!rest.empty() && (rest.find(':') == std::string_view::npos || rest.ends_with(']'))) {
      with_port = fmt::format("{}:{}", rest, kDefaultPort);
      rest = with_port;
    }
  } else if (rest.find("://") != std::string_view::npos)
    return Bad(text, "has a scheme other than phub://");
  const absl::StatusOr<net::HostAndPort> at = net::ParseHostAndPort(rest);
  if (!at.ok()) return Bad(text, MessageOf(at.status()));
  if (at->host.find_first_of("/[] ") != std::string::npos)
    return Bad(text, "has an invalid character in its host");
  if (at->port == 0) return Bad(text, "has the port 0");
  return Endpoint{.host = at->host, .port = at->port};
}

}  // namespace phub::client
