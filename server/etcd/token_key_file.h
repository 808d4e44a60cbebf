// The file with the key of the tokens' hashes and of the tags in etcd: 32 bytes, mode 0600, the
// same on every daemon of a cluster. It is never written to etcd.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/base/random.h"

namespace phub::server::etcd {

// NOT_FOUND: there is no such file. DATA_LOSS: it does not have 32 bytes.
absl::StatusOr<std::string> ReadTokenKeyFile(const std::string& path);
absl::StatusOr<std::string> MakeTokenKeyFile(const std::string& path, Random& random);

}  // namespace phub::server::etcd
