#include "server/tenant/store_check.h"

#include <absl/strings/str_replace.h>
#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "common/base/random.h"
#include "server/tenant/sqlite_store.h"
#include "server/tenant/temporary_copy.h"

namespace phub::server {
namespace {

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
  const auto copy = TemporaryCopy::Make(state_dir);
  if (!copy.ok()) return absl::OkStatus();
  const absl::Status opened = OpenAndRead((*copy)->path());
  if (opened.ok()) return opened;
  return absl::Status(opened.code(),
                      absl::StrReplaceAll(opened.message(), {{(*copy)->path(), state_dir}}));
}

}  // namespace phub::server
