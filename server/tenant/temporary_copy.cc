#include "server/tenant/temporary_copy.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace phub::server {
namespace {

namespace fs = std::filesystem;

bool BelongsToStore(const std::string& name) {
  return name == "control.db" || name == "control.db-wal" || name.starts_with("token.key");
}

}  // namespace

absl::StatusOr<std::unique_ptr<TemporaryCopy>> TemporaryCopy::Make(const std::string& state_dir) {
  // mkdtemp replaces the last six characters.
  std::string path = state_dir + "/.phubd-check-" + std::string(6, 'X');
  if (mkdtemp(path.data()) == nullptr) {
    return absl::ResourceExhaustedError(
        fmt::format("cannot make a folder in {}: {}", state_dir, std::strerror(errno)));
  }
  std::unique_ptr<TemporaryCopy> copy(new TemporaryCopy(path));
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(state_dir, error)) {
    const std::string name = entry.path().filename().string();
    if (!BelongsToStore(name)) continue;
    if (!fs::copy_file(entry.path(), fmt::format("{}/{}", path, name), error)) break;
  }
  if (!error) return copy;
  return absl::ResourceExhaustedError(
      fmt::format("cannot copy the files of {}: {}", state_dir, error.message()));
}

TemporaryCopy::~TemporaryCopy() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace phub::server
