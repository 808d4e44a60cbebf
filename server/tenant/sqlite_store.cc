#include "server/tenant/sqlite_store.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "common/base/status_text.h"
#include "server/tenant/migrations.h"
#include "server/tenant/token.h"
#include "server/tenant/token_key.h"

namespace phub::server {
namespace {

constexpr mode_t kStateDirMode = 0700;
constexpr std::string_view kTenantColumns =
    "name, suspended, memory_bytes, jobs, workers, keys, weight, bandwidth_bytes, created_at, "
    "encryption_required, revision";

absl::Status PrepareFolder(const std::string& path) {
  if (mkdir(path.c_str(), kStateDirMode) != 0 && errno != EEXIST) {
    return absl::FailedPreconditionError(
        fmt::format("cannot create state_dir {}: {}", path, std::strerror(errno)));
  }
  return CheckStateDir(path);
}

template <typename Number>
void BindLimit(Statement& statement, const std::optional<Number>& limit) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();
  if (!limit.has_value()) {
    statement.Null();
  } else {
    statement.Int(static_cast<std::int64_t>(std::min<std::uint64_t>(*limit, kMax)));
  }
}

template <typename Number>
std::optional<Number> LimitOf(const Statement& statement, int column) {
  if (statement.IsNull(column)) return std::nullopt;
  return static_cast<Number>(statement.GetInt(column));
}

Statement& BindQuota(Statement& statement, const Quota& quota) {
  BindLimit(statement, quota.memory_bytes);
  BindLimit(statement, quota.jobs);
  BindLimit(statement, quota.workers);
  BindLimit(statement, quota.keys);
  BindLimit(statement, quota.weight);
  BindLimit(statement, quota.bandwidth_bytes);
  return statement;
}

}  // namespace

absl::Status CheckStateDir(const std::string& path) {
  struct stat facts {};
  if (stat(path.c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode)) {
    return absl::FailedPreconditionError(fmt::format("state_dir {} is not a directory", path));
  }
  if ((facts.st_mode & 077) != 0 && facts.st_uid != geteuid()) {
    return absl::FailedPreconditionError(
        fmt::format("state_dir {} belongs to uid {}, and other users have access to it (mode "
                    "{:04o}), as in a volume's top folder; set state_dir to a folder in it, such "
                    "as {}/phub, which phubd creates",
                    path, facts.st_uid, static_cast<unsigned>(facts.st_mode & 07777), path));
  }
  if ((facts.st_mode & 077) != 0) {
    return absl::FailedPreconditionError(
        fmt::format("users other than its owner have access to state_dir {} (mode {:04o}); run: "
                    "chmod 700 {}",
                    path, static_cast<unsigned>(facts.st_mode & 07777), path));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::Open(const std::string& state_dir,
                                                               Random& random, Frozen frozen) {
  std::string key;
  std::string path;
  if (state_dir.empty()) {
    key = DrawBytes(random, kHashKeyBytes);
  } else {
    if (absl::Status status = PrepareFolder(state_dir); !status.ok()) return status;
    path = state_dir + "/control.db";
  }
  // Open the database first: its lock ensures that no other daemon creates the key meanwhile.
  auto database = Database::Open(path);
  if (!database.ok()) return database.status();
  if (absl::Status status = Migrate(**database, ControlStoreMigrations()); !status.ok())
    return status;
  if (!state_dir.empty()) {
    auto read = ReadOrMakeTokenKey(**database, state_dir, random);
    if (!read.ok()) return read.status();
    key = *std::move(read);
  }
  if (absl::Status status = CheckTokenKey(**database, key); !status.ok()) return status;
  std::unique_ptr<SqliteStore> store(new SqliteStore(*std::move(database), std::move(key), path));
  if (frozen == Frozen::kAccepted) return store;
  const auto why = store->FrozenBecause();
  if (!why.ok()) return why.status();
  if (why->empty()) return store;
  return absl::FailedPreconditionError(
      fmt::format("{} is frozen, because {}. Set control_store to that store. If {} is to be used "
                  "again, run: phubctl store thaw sqlite:{}",
                  path, *why, state_dir, state_dir));
}

absl::StatusOr<std::vector<Tenant>> SqliteStore::Tenants() {
  std::vector<Tenant> tenants;
  Statement row(*database_, fmt::format("SELECT {} FROM tenants ORDER BY name", kTenantColumns));
  while (row.Next()) {
    Tenant tenant;
    tenant.name = row.GetText(0);
    tenant.suspended = row.GetInt(1) != 0;
    tenant.quota.memory_bytes = LimitOf<std::uint64_t>(row, 2);
    tenant.quota.jobs = LimitOf<std::uint32_t>(row, 3);
    tenant.quota.workers = LimitOf<std::uint32_t>(row, 4);
    tenant.quota.keys = LimitOf<std::uint32_t>(row, 5);
    tenant.quota.weight = LimitOf<std::uint32_t>(row, 6);
    tenant.quota.bandwidth_bytes = LimitOf<std::uint64_t>(row, 7);
    tenant.created_at = row.GetInt(8);
    tenant.encryption_required = row.GetInt(9) != 0;
    tenant.revision = row.GetInt(10);
    tenants.push_back(std::move(tenant));
  }
  if (!row.status().ok()) return row.status();
  return tenants;
}

absl::StatusOr<std::vector<Token>> SqliteStore::Tokens() {
  std::vector<Token> tokens;
  Statement row(*database_,
                "SELECT id, role, tenant, label, hash, created_at, expires_at, revoked_at, "
                "created_by, revision, key_id FROM tokens ORDER BY created_at, id");
  while (row.Next()) {
    const std::optional<Role> role = ParseRole(row.GetText(1));
    if (!role.has_value()) {
      return absl::DataLossError(fmt::format(
          "control.db has token {} with the unknown role {}; probably a newer phubd has "
          "written it",
          row.GetText(0), row.GetText(1)));
    }
    tokens.push_back({.id = row.GetText(0),
                      .role = *role,
                      .tenant = row.GetText(2),
                      .label = row.GetText(3),
                      .hash = row.GetText(4),
                      .created_at = row.GetInt(5),
                      .expires_at = row.GetInt(6),
                      .revoked_at = row.GetInt(7),
                      .created_by = row.GetText(8),
                      .revision = row.GetInt(9),
                      .key_id = row.GetText(10)});
  }
  if (!row.status().ok()) return row.status();
  return tokens;
}

absl::Status SqliteStore::Apply(const AuditNote& note,
                                const std::function<absl::Status()>& change) {
  auto transaction = Database::Transaction::Begin(*database_);
  if (!transaction.ok()) return transaction.status();
  if (absl::Status status = change(); !status.ok()) return status;
  if (absl::Status status = Append(note); !status.ok()) return status;
  return (*transaction)->Commit();
}

absl::Status SqliteStore::CheckChanged(const std::string& what) const {
  if (database_->changed_rows() == 1) return absl::OkStatus();
  return absl::AbortedError(fmt::format("{} was changed meanwhile; check it and try again", what));
}

absl::Status SqliteStore::CreateTenant(Tenant& tenant, const AuditNote& note) {
  const absl::Status status = Apply(note, [&] { return InsertTenant(tenant); });
  if (status.ok()) tenant.revision = 1;
  return status;
}

absl::Status SqliteStore::InsertTenant(const Tenant& tenant) {
  Statement insert(*database_, fmt::format("INSERT INTO tenants ({}) "
                                           "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)",
                                           kTenantColumns));
  insert.Text(tenant.name).Int(tenant.suspended ? 1 : 0);
  return BindQuota(insert, tenant.quota)
      .Int(tenant.created_at)
      .Int(tenant.encryption_required ? 1 : 0)
      .Run();
}

absl::Status SqliteStore::UpdateTenant(Tenant& tenant, const AuditNote& note) {
  const absl::Status status = Apply(note, [&] {
    Statement update(*database_,
                     "UPDATE tenants SET suspended = ?, memory_bytes = ?, jobs = ?, workers = ?, "
                     "keys = ?, weight = ?, bandwidth_bytes = ?, encryption_required = ?, "
                     "revision = revision + 1 WHERE name = ? AND revision = ?");
    update.Int(tenant.suspended ? 1 : 0);
    const absl::Status updated = BindQuota(update, tenant.quota)
                                     .Int(tenant.encryption_required ? 1 : 0)
                                     .Text(tenant.name)
                                     .Int(tenant.revision)
                                     .Run();
    return updated.ok() ? CheckChanged("tenant " + tenant.name) : updated;
  });
  if (status.ok()) ++tenant.revision;
  return status;
}

absl::Status SqliteStore::DeleteTenant(const Tenant& tenant, const AuditNote& note) {
  return Apply(note, [&] {
    const absl::Status deleted =
        Statement(*database_, "DELETE FROM tenants WHERE name = ? AND revision = ?")
            .Text(tenant.name)
            .Int(tenant.revision)
            .Run();
    return deleted.ok() ? CheckChanged("tenant " + tenant.name) : deleted;
  });
}

absl::Status SqliteStore::InsertToken(const Token& token) {
  Statement insert(*database_,
                   "INSERT INTO tokens (id, role, tenant, label, hash, created_at, expires_at, "
                   "revoked_at, created_by, key_id, revision) "
                   "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)");
  insert.Text(token.id).Text(ToString(token.role));
  token.tenant.empty() ? insert.Null() : insert.Text(token.tenant);
  return insert.Text(token.label)
      .Blob(token.hash)
      .Int(token.created_at)
      .Int(token.expires_at)
      .Int(token.revoked_at)
      .Text(token.created_by)
      .Text(token.key_id)
      .Run();
}

absl::Status SqliteStore::ChangeToken(const Token& token) {
  const absl::Status changed =
      Statement(*database_,
                "UPDATE tokens SET expires_at = ?, revoked_at = ?, revision = revision + 1 "
                "WHERE id = ? AND revision = ?")
          .Int(token.expires_at)
          .Int(token.revoked_at)
          .Text(token.id)
          .Int(token.revision)
          .Run();
  return changed.ok() ? CheckChanged("token " + token.id) : changed;
}

absl::Status SqliteStore::AddToken(Token& token, const AuditNote& note) {
  const absl::Status status = Apply(note, [&] { return InsertToken(token); });
  if (status.ok()) token.revision = 1;
  return status;
}

absl::Status SqliteStore::RotateToken(Token& token, Token& old, const AuditNote& note) {
  const absl::Status status = Apply(note, [&] {
    const absl::Status inserted = InsertToken(token);
    return inserted.ok() ? ChangeToken(old) : inserted;
  });
  if (!status.ok()) return status;
  token.revision = 1;
  ++old.revision;
  return status;
}

absl::Status SqliteStore::RevokeToken(Token& token, const AuditNote& note) {
  const absl::Status status = Apply(note, [&] { return ChangeToken(token); });
  if (status.ok()) ++token.revision;
  return status;
}

absl::Status SqliteStore::Audit(const AuditNote& note) {
  return Apply(note, [] { return absl::OkStatus(); });
}

DiskSpace SqliteStore::Space() const {
  DiskSpace space;
  struct statvfs system {};
  if (path_.empty() || statvfs(path_.c_str(), &system) != 0) return space;
  space.free_bytes = std::uint64_t{system.f_bavail} * system.f_frsize;
  space.total_bytes = std::uint64_t{system.f_blocks} * system.f_frsize;
  for (const char* suffix : {"", "-wal"}) {
    struct stat file {};
    if (stat((path_ + suffix).c_str(), &file) != 0) continue;
    space.used_bytes += static_cast<std::uint64_t>(file.st_size);
  }
  return space;
}

}  // namespace phub::server
