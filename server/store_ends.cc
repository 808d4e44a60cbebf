#include "server/store_ends.h"

#include <absl/strings/str_replace.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/base/descriptor.h"
#include "common/base/secret_file.h"
#include "common/base/status_text.h"
#include "server/config/control_store_setting.h"
#include "server/etcd/store_copy.h"
#include "server/open_store.h"
#include "server/tenant/sqlite_store.h"
#include "server/tenant/temporary_copy.h"

namespace phub::server {
namespace {

constexpr std::string_view kSqlitePrefix = "sqlite:";
// Where SQLite locks its files; see "File Locking And Concurrency" in its documentation.
constexpr off_t kSqliteLockBegin = 0x40000000;
constexpr off_t kSqliteLockBytes = 512;

// FAILED_PRECONDITION: a process has locked the database. SQLite itself would only say that it is
// busy, and might change the file.
absl::Status CheckNotOpen(const std::string& file) {
  const Descriptor descriptor(open(file.c_str(), O_RDWR | O_CLOEXEC));
  if (!descriptor) {
    return absl::FailedPreconditionError(
        fmt::format("cannot open {}: {}", file, std::strerror(errno)));
  }
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = kSqliteLockBegin;
  lock.l_len = kSqliteLockBytes;
  if (fcntl(descriptor.get(), F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK)
    return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("process {} has {} open; stop the phubd that uses it first", lock.l_pid, file));
}

// As another user, phubctl would make files that phubd cannot read.
absl::Status CheckOwner(const std::string& folder) {
  struct stat facts {};
  if (stat(folder.c_str(), &facts) != 0 || facts.st_uid == geteuid()) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "{} belongs to uid {}, and this is uid {}; run phubctl as that user: sudo -u '#{}' "
      "phubctl store ...",
      folder, facts.st_uid, geteuid(), facts.st_uid));
}

class SqliteEnd final : public StoreEnd {
 public:
  SqliteEnd(std::string folder, Random& random)
      : folder_(std::move(folder)), name_(std::string(kSqlitePrefix) + folder_), random_(random) {}

  const std::string& name() const override { return name_; }
  std::string key_path() const override { return folder_ + "/token.key"; }

  absl::StatusOr<StoreImage> Look() override {
    if (absl::Status owner = CheckOwner(folder_); !owner.ok()) return owner;
    if (!Exists()) return absl::NotFoundError(fmt::format("{} has no control.db", folder_));
    if (absl::Status open = CheckNotOpen(folder_ + "/control.db"); !open.ok()) return open;
    const auto copy = TemporaryCopy::Make(folder_);
    if (!copy.ok()) return copy.status();
    auto image = LookAt((*copy)->path());
    if (image.ok()) return image;
    return absl::Status(image.status().code(), absl::StrReplaceAll(image.status().message(),
                                                                   {{(*copy)->path(), folder_}}));
  }

  absl::Status Freeze(const std::string& why, const AuditNote& note) override {
    if (absl::Status opened = Open(Frozen::kAccepted); !opened.ok()) return opened;
    const auto known = store_->FrozenBecause();
    if (!known.ok()) return known.status();
    if (known->empty()) return store_->Freeze(why, note);
    if (*known == why) return absl::OkStatus();
    return absl::FailedPreconditionError(fmt::format(
        "{} is frozen, because {}. To copy it to another store, thaw it first: phubctl store thaw "
        "{}",
        name_, *known, name_));
  }

  absl::Status Thaw(const AuditNote& note) override {
    if (!Exists()) return absl::NotFoundError(fmt::format("{} has no control.db", folder_));
    if (absl::Status opened = Open(Frozen::kAccepted); !opened.ok()) return opened;
    const auto known = store_->FrozenBecause();
    if (!known.ok()) return known.status();
    if (known->empty()) return absl::NotFoundError(name_ + " is not frozen");
    return store_->Thaw(note);
  }

  absl::Status Hold(const std::string&, const std::string& key) override {
    std::error_code error;
    if (mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) {
      return absl::FailedPreconditionError(
          fmt::format("cannot create {}: {}", folder_, std::strerror(errno)));
    }
    if (!Exists() && !std::filesystem::exists(key_path(), error)) {
      const absl::Status written =
          WriteFileDurably(key_path(), key, kSecretFileMode, /*replace=*/false);
      if (!written.ok()) return written;
    }
    return Open(Frozen::kRefused);
  }

  absl::StatusOr<StoreImage> Read() override { return store_->Read(name_); }
  absl::Status Import(const CopyPlan& plan, const AuditNote& note) override {
    return store_->Import(plan, note);
  }

 private:
  bool Exists() const {
    std::error_code error;
    return std::filesystem::exists(folder_ + "/control.db", error);
  }

  absl::Status Open(Frozen frozen) {
    if (absl::Status owner = CheckOwner(folder_); !owner.ok()) return owner;
    auto opened = SqliteStore::Open(folder_, random_, frozen);
    if (!opened.ok()) return opened.status();
    store_ = *std::move(opened);
    return absl::OkStatus();
  }

  absl::StatusOr<StoreImage> LookAt(const std::string& copy) {
    {
      const auto database = Database::Open(copy + "/control.db");
      if (!database.ok()) return database.status();
      Statement version(**database, "PRAGMA user_version");
      if (!version.Next() || version.GetInt(0) == 0) {
        return absl::DataLossError(
            fmt::format("{}/control.db is not a control store of phub", folder_));
      }
    }
    const auto store = SqliteStore::Open(copy, random_, Frozen::kAccepted);
    return store.ok() ? (*store)->Read(name_) : store.status();
  }

  const std::string folder_;
  const std::string name_;
  Random& random_;
  std::unique_ptr<SqliteStore> store_;
};

class EtcdEnd final : public StoreEnd {
 public:
  EtcdEnd(etcd::CopyOptions options, Random& random)
      : options_(std::move(options)), copy_(options_, random) {}

  const std::string& name() const override { return options_.name; }
  std::string key_path() const override { return options_.token_key_path; }
  absl::StatusOr<StoreImage> Look() override {
    const absl::Status opened = copy_.Open();
    return opened.ok() ? copy_.Read() : opened;
  }
  absl::Status Freeze(const std::string& why, const AuditNote& note) override {
    const absl::Status opened = copy_.Open();
    return opened.ok() ? copy_.Freeze(why, note) : opened;
  }
  absl::Status Thaw(const AuditNote& note) override {
    const absl::Status opened = copy_.Open();
    return opened.ok() ? copy_.Thaw(note) : opened;
  }
  absl::Status Hold(const std::string& why, const std::string& key) override {
    absl::Status opened = copy_.Open();
    if (absl::IsNotFound(opened)) opened = copy_.Found(key);
    return opened.ok() ? copy_.Hold(why) : opened;
  }
  absl::StatusOr<StoreImage> Read() override { return copy_.Read(); }
  absl::Status Import(const CopyPlan& plan, const AuditNote& note) override {
    const absl::Status written = copy_.Write(plan, note);
    if (written.ok()) return written;
    return absl::Status(written.code(),
                        fmt::format("the copy to {} is not complete, run the command again: {}",
                                    options_.name, MessageOf(written)));
  }

 private:
  const etcd::CopyOptions options_;
  etcd::ClusterCopy copy_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StoreEnd>> MakeStoreEnd(const std::string& store, Settings settings,
                                                       Random& random) {
  if (store.starts_with(kSqlitePrefix) && store.size() > kSqlitePrefix.size()) {
    std::error_code error;
    std::filesystem::path path =
        std::filesystem::absolute(store.substr(kSqlitePrefix.size()), error).lexically_normal();
    if (path.filename().empty()) path = path.parent_path();  // "/var/lib/phub/"
    return std::make_unique<SqliteEnd>(path.string(), random);
  }
  if (!store.starts_with("etcd:")) {
    return absl::InvalidArgumentError(fmt::format(
        "\"{}\" is not a control store; write sqlite:DIR or etcd:https://host:2379", store));
  }
  settings.control_store = store;
  if (absl::Status status = ResolveControlStore(settings); !status.ok()) return status;
  const auto options = EtcdOptions(settings);
  if (!options.ok()) return options.status();
  if (absl::Status files = etcd::CheckFiles(*options); !files.ok()) return files;
  return std::make_unique<EtcdEnd>(
      etcd::CopyOptions{options->client, options->prefix, options->token_key_path,
                        fmt::format("{} ({})", store, options->prefix)},
      random);
}

}  // namespace phub::server
