#include "server/tenant/migrations.h"

#include <fmt/format.h>

#include "common/base/log.h"

namespace phub::server {
namespace {

constexpr const char* kSteps[] = {
    // 1. A null column of a quota means no limit. Times are in ns since 1970; 0 means never.
    R"(
CREATE TABLE facts (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
CREATE TABLE tenants (
  name TEXT PRIMARY KEY,
  suspended INTEGER NOT NULL,
  memory_bytes INTEGER, jobs INTEGER, workers INTEGER, keys INTEGER,
  created_at INTEGER NOT NULL
) STRICT;
CREATE TABLE tokens (
  id TEXT PRIMARY KEY,
  role TEXT NOT NULL,
  tenant TEXT REFERENCES tenants (name) ON DELETE CASCADE,
  label TEXT NOT NULL,
  hash BLOB NOT NULL,
  created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  revoked_at INTEGER NOT NULL,
  created_by TEXT NOT NULL
) STRICT;
CREATE TABLE audit (
  sequence INTEGER PRIMARY KEY,
  at INTEGER NOT NULL,
  actor TEXT NOT NULL, peer TEXT NOT NULL, action TEXT NOT NULL,
  subject TEXT NOT NULL, detail TEXT NOT NULL, outcome TEXT NOT NULL,
  chain BLOB NOT NULL
) STRICT;
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TRIGGER audit_is_not_deleted BEFORE DELETE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
)",
    // 2. Tenants may require that their lanes are encrypted.
    "ALTER TABLE tenants ADD COLUMN encryption_required INTEGER NOT NULL DEFAULT 0;",
    // 3. Shares of core loops, and bandwidth.
    R"(
ALTER TABLE tenants ADD COLUMN weight INTEGER;
ALTER TABLE tenants ADD COLUMN bandwidth_bytes INTEGER;
)",
    // 4. The number of changes of a record, which a change of it must name.
    R"(
ALTER TABLE tenants ADD COLUMN revision INTEGER NOT NULL DEFAULT 1;
ALTER TABLE tokens ADD COLUMN revision INTEGER NOT NULL DEFAULT 1;
)",
    // 5. What was copied from other stores: tokens with another key (empty: the store's own), and
    // audit logs, which stay as they were written.
    R"(
ALTER TABLE tokens ADD COLUMN key_id TEXT NOT NULL DEFAULT '';
CREATE TABLE old_logs (
  id TEXT PRIMARY KEY,
  key_id TEXT NOT NULL,
  source TEXT NOT NULL,
  closed_at INTEGER NOT NULL
) STRICT;
CREATE TABLE old_audit (
  sequence INTEGER NOT NULL,
  at INTEGER NOT NULL,
  actor TEXT NOT NULL, peer TEXT NOT NULL, action TEXT NOT NULL,
  subject TEXT NOT NULL, detail TEXT NOT NULL, outcome TEXT NOT NULL,
  chain BLOB NOT NULL,
  log TEXT NOT NULL REFERENCES old_logs (id),
  PRIMARY KEY (log, sequence)
) STRICT;
CREATE TRIGGER old_audit_is_not_changed BEFORE UPDATE ON old_audit
BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TRIGGER old_audit_is_not_deleted BEFORE DELETE ON old_audit
BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
)"};

absl::StatusOr<std::int64_t> VersionOf(Database& database) {
  Statement version(database, "PRAGMA user_version");
  const bool found = version.Next();
  if (!version.status().ok()) return version.status();
  return found ? version.GetInt(0) : 0;
}

}  // namespace

std::span<const char* const> ControlStoreMigrations() { return kSteps; }

absl::Status Migrate(Database& database, std::span<const char* const> steps) {
  const absl::StatusOr<std::int64_t> version = VersionOf(database);
  if (!version.ok()) return version.status();
  const auto last = static_cast<std::int64_t>(steps.size());
  if (*version > last) {
    return absl::FailedPreconditionError(fmt::format(
        "the control store has version {}, but this phubd supports versions up to {}. A newer "
        "phubd "
        "has written it; run the newer phubd, or restore a backup from before the upgrade",
        *version, last));
  }
  for (std::int64_t step = *version; step < last; ++step) {
    auto transaction = Database::Transaction::Begin(database);
    if (!transaction.ok()) return transaction.status();
    absl::Status status = database.Execute(steps[static_cast<std::size_t>(step)]);
    if (status.ok()) {
      status = database.Execute(fmt::format("PRAGMA user_version = {}", step + 1));
    }
    if (status.ok()) status = (*transaction)->Commit();
    if (!status.ok()) return status;
    LogInfo("event=state_migrated version={}", step + 1);
  }
  return absl::OkStatus();
}

}  // namespace phub::server
