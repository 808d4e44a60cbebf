// How a store in SQLite is copied, see sqlite_store.h.
#include <fmt/format.h>

#include <limits>

#include "server/tenant/sqlite_store.h"
#include "server/tenant/token.h"
#include "server/tenant/token_key.h"

namespace phub::server {
namespace {

// The fact that a store was copied elsewhere.
constexpr std::string_view kFrozenName = "frozen";

}  // namespace

std::string SqliteStore::KeyPath() const {
  return path_.substr(0, path_.rfind('/') + 1) + "token.key";
}

absl::StatusOr<std::string> SqliteStore::ReadOtherKey(const std::string& key_id) const {
  if (path_.empty()) return absl::NotFoundError("a store in memory has no other token keys");
  return ReadOtherTokenKey(KeyPath(), key_id);
}

absl::StatusOr<std::string> SqliteStore::FrozenBecause() {
  Statement find(*database_, "SELECT value FROM facts WHERE name = ?");
  find.Text(kFrozenName);
  const bool found = find.Next();
  if (!find.status().ok()) return find.status();
  return found ? find.GetText(0) : "";
}

absl::Status SqliteStore::Freeze(const std::string& why, const AuditNote& note) {
  return Apply(note, [&] {
    return Statement(*database_, "INSERT INTO facts (name, value) VALUES (?, ?)")
        .Text(kFrozenName)
        .Blob(why)
        .Run();
  });
}

absl::Status SqliteStore::Thaw(const AuditNote& note) {
  return Apply(note, [&] {
    return Statement(*database_, "DELETE FROM facts WHERE name = ?").Text(kFrozenName).Run();
  });
}

absl::StatusOr<std::vector<AuditLog>> SqliteStore::OldLogs() {
  std::vector<AuditLog> logs;
  {
    Statement row(*database_, "SELECT id, key_id, source, closed_at FROM old_logs ORDER BY id");
    while (row.Next()) {
      logs.push_back({.id = row.GetText(0),
                      .key_id = row.GetText(1),
                      .source = row.GetText(2),
                      .closed_at = row.GetInt(3)});
    }
    if (!row.status().ok()) return row.status();
  }
  for (AuditLog& log : logs) {
    Statement row(
        *database_,
        fmt::format("SELECT {} FROM old_audit WHERE log = ? ORDER BY sequence", kEntryColumns));
    row.Text(log.id);
    while (row.Next()) log.entries.push_back(ReadEntry(row));
    if (!row.status().ok()) return row.status();
  }
  return logs;
}

absl::StatusOr<StoreImage> SqliteStore::Read(const std::string& name) {
  {
    Statement check(*database_, "PRAGMA quick_check(1)");
    if (!check.Next() || check.GetText(0) != "ok") {
      return absl::DataLossError(fmt::format(
          "{} is damaged ({}); restore a backup", name,
          check.status().ok() ? check.GetText(0) : std::string(check.status().message())));
    }
  }
  StoreImage image;
  image.name = name;
  image.key = hash_key_;
  image.log.key_id = TokenKeyId(hash_key_);
  image.log.source = name;
  image.keys[image.log.key_id] = hash_key_;
  auto tenants = Tenants();
  if (!tenants.ok()) return tenants.status();
  image.tenants = *std::move(tenants);
  auto tokens = Tokens();
  if (!tokens.ok()) return tokens.status();
  image.tokens = *std::move(tokens);
  auto entries = ReadAudit(0, std::numeric_limits<std::int64_t>::max());
  if (!entries.ok()) return entries.status();
  image.log.entries = *std::move(entries);
  image.log.id = AuditLogId(image.log.entries);
  auto logs = OldLogs();
  if (!logs.ok()) return logs.status();
  image.old_logs = *std::move(logs);
  std::vector<std::string> needed;
  for (Token& token : image.tokens) {
    if (token.key_id.empty()) token.key_id = image.log.key_id;
    needed.push_back(token.key_id);
  }
  for (const AuditLog& log : image.old_logs) needed.push_back(log.key_id);
  for (const std::string& id : needed) {
    if (image.keys.contains(id)) continue;
    auto key = ReadOtherKey(id);
    if (!key.ok()) return key.status();
    image.keys[id] = *std::move(key);
  }
  return image;
}

absl::Status SqliteStore::InsertLog(const AuditLog& log) {
  const absl::Status known =
      Statement(*database_,
                "INSERT INTO old_logs (id, key_id, source, closed_at) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET closed_at = excluded.closed_at")
          .Text(log.id)
          .Text(log.key_id)
          .Text(log.source)
          .Int(log.closed_at)
          .Run();
  if (!known.ok()) return known;
  for (const AuditEntry& entry : log.entries) {
    Statement insert(*database_,
                     fmt::format("INSERT INTO old_audit ({}, log) VALUES (?, ?, ?, ?, ?, ?, ?, ?, "
                                 "?, ?)",
                                 kEntryColumns));
    if (absl::Status status = BindEntry(insert, entry).Text(log.id).Run(); !status.ok())
      return status;
  }
  return absl::OkStatus();
}

absl::Status SqliteStore::Import(const CopyPlan& plan, const AuditNote& note) {
  for (const auto& [id, key] : plan.keys) {
    if (absl::Status written = WriteOtherTokenKey(KeyPath(), key); !written.ok()) return written;
  }
  return Apply(note, [&] {
    absl::Status status;
    for (const Tenant& tenant : plan.tenants) {
      if (status = InsertTenant(tenant); !status.ok()) return status;
    }
    for (const Token& token : plan.tokens) {
      if (status = InsertToken(token); !status.ok()) return status;
    }
    for (const AuditLog& log : plan.logs) {
      if (status = InsertLog(log); !status.ok()) return status;
    }
    return status;
  });
}

}  // namespace phub::server
