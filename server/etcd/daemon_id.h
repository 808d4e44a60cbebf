// The name of this daemon in its cluster, which stays the same when it is restarted.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/base/random.h"

namespace phub::server::etcd {

// 1 to 63 characters of A-Z, a-z, 0-9, '-', '_' and '.'.
bool IsDaemonId(std::string_view id);
// From the file next to the token key ("token.key.daemon"), which is made if it does not exist: the
// host's name and some random digits.
absl::StatusOr<std::string> FindDaemonId(const std::string& token_key_path, Random& random);

}  // namespace phub::server::etcd
