// Reads and writes files that hold secrets (tokens, private keys), and their certificates. Reading
// a secret fails unless only the owner may read the file. Writing is atomic. Any thread.
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

// Returns the contents. FAILED_PRECONDITION if group or others have any permission on the file,
// unless it belongs to root and only its group may read it (mode 0440 or 0640), as in a Kubernetes
// volume with fsGroup; the message says how to correct it. NOT_FOUND, or the status of the failed
// system call. Messages never include the contents. A file of more than `bytes_max` is refused.
absl::StatusOr<std::string> ReadSecretFile(const std::string& path,
                                           std::size_t bytes_max = kSecretFileBytesMax);

// The same for a file that anybody may read, such as a certificate. FAILED_PRECONDITION if the file
// cannot be read or is empty.
absl::StatusOr<std::string> ReadPublicFile(const std::string& path);

// Writes a temporary file in the same folder, syncs it and renames it: after a crash at any time
// the file has either the old or the new contents. ALREADY_EXISTS if `replace` is false and the
// file exists. `mode`: kSecretFileMode, or another mode for a public file.
absl::Status WriteFileDurably(const std::string& path, std::string_view contents, mode_t mode,
                              bool replace);
// The file does not come back after a crash. OK if it did not exist.
absl::Status RemoveFileDurably(const std::string& path);

}  // namespace phub
