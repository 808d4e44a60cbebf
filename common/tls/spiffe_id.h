// The name in a certificate of phub's authority: spiffe://<trust domain>/<role>/<name>, the only
// URI of its subject alternative names.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace phub {

struct SpiffeId {
  std::string role;  // "server", "tenant", or what the caller does not know
  std::string name;
};

// INVALID_ARGUMENT: another trust domain or another form. The message continues a sentence that
// names the URI: "which is not in the trust domain phub".
absl::StatusOr<SpiffeId> ParseSpiffeId(std::string_view uri, std::string_view trust_domain);

}  // namespace phub
