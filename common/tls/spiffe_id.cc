#include "common/tls/spiffe_id.h"

#include <fmt/format.h>

#include "absl/status/status.h"

namespace phub {

absl::StatusOr<SpiffeId> ParseSpiffeId(std::string_view uri, std::string_view trust_domain) {
  const std::string start = fmt::format("spiffe://{}/", trust_domain);
  if (!uri.starts_with(start)) {
    return absl::InvalidArgumentError(
        fmt::format("which is not in the trust domain {}", trust_domain));
  }
  const std::string_view path = uri.substr(start.size());
  const std::size_t slash = path.find('/');
  const std::string_view name = slash == std::string_view::npos ? "" : path.substr(slash + 1);
  if (slash == 0 || name.empty() || name.find('/') != std::string_view::npos)
    return absl::InvalidArgumentError("whose path is not ROLE/NAME");
  return SpiffeId{std::string(path.substr(0, slash)), std::string(name)};
}

}  // namespace phub
