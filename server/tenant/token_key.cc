#include "server/tenant/token_key.h"

#include <fmt/format.h>

#include <string_view>

#include "common/base/secret_file.h"
#include "server/tenant/token.h"

namespace phub::server {
namespace {

// The fact of the database that shows which key it belongs to.
constexpr std::string_view kKeyCheckName = "key_check";
constexpr std::string_view kKeyCheckText = "phub token key";

std::string KeyPath(const std::string& state_dir) { return state_dir + "/token.key"; }

}  // namespace

absl::StatusOr<std::string> ReadTokenKey(const std::string& state_dir) {
  const std::string path = KeyPath(state_dir);
  absl::StatusOr<std::string> key = ReadSecretFile(path);
  if (key.ok() && key->size() != kHashKeyBytes) {
    return absl::DataLossError(
        fmt::format("{} has {} bytes instead of {}; restore it from a backup, because without it "
                    "every issued token is invalid",
                    path, key->size(), kHashKeyBytes));
  }
  return key;
}

absl::StatusOr<std::string> ReadOtherTokenKey(const std::string& path, const std::string& key_id) {
  const std::string file = fmt::format("{}.{}", path, key_id);
  absl::StatusOr<std::string> key = ReadSecretFile(file);
  if (absl::IsNotFound(key.status())) {
    return absl::FailedPreconditionError(fmt::format(
        "{} is missing: tokens that were copied from another store need it. Copy it from "
        "the host where phubctl store copy ran",
        file));
  }
  if (key.ok() && (key->size() != kHashKeyBytes || TokenKeyId(*key) != key_id)) {
    return absl::DataLossError(fmt::format("{} does not have token key {}", file, key_id));
  }
  return key;
}

absl::Status WriteOtherTokenKey(const std::string& path, const std::string& key) {
  const std::string id = TokenKeyId(key);
  if (ReadOtherTokenKey(path, id).ok()) return absl::OkStatus();
  return WriteFileDurably(fmt::format("{}.{}", path, id), key, kSecretFileMode, /*replace=*/true);
}

absl::StatusOr<std::string> ReadOrMakeTokenKey(Database& database, const std::string& state_dir,
                                               Random& random) {
  absl::StatusOr<std::string> key = ReadTokenKey(state_dir);
  if (!absl::IsNotFound(key.status())) return key;
  Statement find(database, "SELECT 1 FROM facts WHERE name = ?");
  find.Text(kKeyCheckName);
  if (find.Next()) {
    return absl::DataLossError(
        fmt::format("{} is missing, but control.db was written with it; restore it from a backup, "
                    "because without it every issued token is invalid",
                    KeyPath(state_dir)));
  }
  if (!find.status().ok()) return find.status();
  const std::string drawn = DrawBytes(random, kHashKeyBytes);
  const absl::Status written =
      WriteFileDurably(KeyPath(state_dir), drawn, kSecretFileMode, /*replace=*/false);
  if (!written.ok()) return written;
  return drawn;
}

absl::Status CheckTokenKey(Database& database, const std::string& key) {
  const std::string expected = KeyedHash(key, kKeyCheckText);
  {
    Statement find(database, "SELECT value FROM facts WHERE name = ?");
    find.Text(kKeyCheckName);
    if (find.Next()) {
      if (EqualHashes(find.GetText(0), expected)) return absl::OkStatus();
      return absl::DataLossError(
          "token.key is not the key that control.db was written with; restore both from the same "
          "backup");
    }
    if (!find.status().ok()) return find.status();
  }
  Statement insert(database, "INSERT INTO facts (name, value) VALUES (?, ?)");
  return insert.Text(kKeyCheckName).Blob(expected).Run();
}

}  // namespace phub::server
