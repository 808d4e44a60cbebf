#include "server/etcd/token_key_file.h"

#include <fmt/format.h>

#include "common/base/secret_file.h"
#include "server/tenant/token.h"

namespace phub::server::etcd {

absl::StatusOr<std::string> ReadTokenKeyFile(const std::string& path) {
  absl::StatusOr<std::string> key = ReadSecretFile(path);
  if (key.ok() && key->size() != kHashKeyBytes) {
    return absl::DataLossError(
        fmt::format("{} has {} bytes instead of {}; copy it from another daemon of the cluster",
                    path, key->size(), kHashKeyBytes));
  }
  return key;
}

absl::StatusOr<std::string> MakeTokenKeyFile(const std::string& path, Random& random) {
  std::string key = DrawBytes(random, kHashKeyBytes);
  const absl::Status written = WriteFileDurably(path, key, kSecretFileMode, /*replace=*/false);
  if (!written.ok()) return written;
  return key;
}

}  // namespace phub::server::etcd
