// The key of the tokens' hashes: the file `token.key` in state_dir. Keys of other stores, whose
// tokens were copied, are in files of the same name with a dot and their id.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/random.h"
#include "server/tenant/database.h"

namespace phub::server {

// NOT_FOUND: the store has no token key yet. DATA_LOSS: it is damaged.
absl::StatusOr<std::string> ReadTokenKey(const std::string& state_dir);
// The key with this id, next to the file at `path`. FAILED_PRECONDITION: the file is missing.
absl::StatusOr<std::string> ReadOtherTokenKey(const std::string& path, const std::string& key_id);
// Has no effect if the file exists.
absl::Status WriteOtherTokenKey(const std::string& path, const std::string& key);
// Makes the key only if the database was never used with one, otherwise DATA_LOSS: another key
// would make every token invalid.
absl::StatusOr<std::string> ReadOrMakeTokenKey(Database& database, const std::string& state_dir,
                                               Random& random);
// DATA_LOSS: the database was written with another key. Remembers the first one.
absl::Status CheckTokenKey(Database& database, const std::string& key);

}  // namespace phub::server
