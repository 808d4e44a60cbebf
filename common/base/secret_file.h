// Files that hold secrets (tokens, private keys) and what goes with them. Secrets are read only if
// nobody but their owner may read them, written so that they are there whole or not at all. Any
// thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace phub {

inline constexpr std::size_t kSecretFileBytesMax = 64 * 1024;
inline constexpr mode_t kSecretFileMode = 0600;

// The contents. FAILED_PRECONDITION if group or others have any right to the file (the message says
// which chmod to run), NOT_FOUND, or what else is in the way; no message holds contents.
absl::StatusOr<std::string> ReadSecretFile(const std::string& path);

// As above, of what anybody may read, such as certificates. FAILED_PRECONDITION if it cannot be
// read or is empty.
absl::StatusOr<std::string> ReadPublicFile(const std::string& path);

// Writes beside, syncs, and puts it into place: after a crash at any instant the file is as before
// or as given. `replace` false: ALREADY_EXISTS if there is one. Other modes are for what is public.
absl::Status WriteFileDurably(const std::string& path, std::string_view contents, mode_t mode,
                              bool replace);

}  // namespace phub
