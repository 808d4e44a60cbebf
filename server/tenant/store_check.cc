#include "server/tenant/store_check.h"

#include <absl/strings/str_replace.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "common/base/random.h"
#include "server/tenant/sqlite_store.h"

namespace phub::server {
namespace {

// A folder that is removed at the end.
class FolderForAWhile {
 public:
  // Its name is the prefix and six characters that mkdtemp chooses.
  explicit FolderForAWhile(const std::string& prefix) : path_(prefix + std::string(6, 'X')) {
    if (mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~FolderForAWhile() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  FolderForAWhile(const FolderForAWhile&) = delete;
  FolderForAWhile& operator=(const FolderForAWhile&) = delete;
  // Empty: it could not be created.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

absl::Status OpenAndRead(const std::string& state_dir) {
  SystemRandom random;
  const auto store = SqliteStore::Open(state_dir, random);
  if (!store.ok()) return store.status();
  if (const auto tenants = (*store)->Tenants(); !tenants.ok()) return tenants.status();
  return (*store)->Tokens().status();
}

}  // namespace

absl::Status CheckStore(const std::string& state_dir) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::exists(state_dir + "/control.db", error)) return absl::OkStatus();
  const FolderForAWhile copy(state_dir + "/.phubd-check-");
  if (copy.path().empty()) return absl::OkStatus();
  for (const char* name : {"control.db", "control.db-wal", "token.key"}) {
    const std::string from = fmt::format("{}/{}", state_dir, name);
    if (!fs::exists(from, error)) continue;
    if (!fs::copy_file(from, fmt::format("{}/{}", copy.path(), name), error)) {
      return absl::OkStatus();
    }
  }
  const absl::Status opened = OpenAndRead(copy.path());
  if (opened.ok()) return opened;
  return absl::Status(opened.code(),
                      absl::StrReplaceAll(opened.message(), {{copy.path(), state_dir}}));
}

}  // namespace phub::server
