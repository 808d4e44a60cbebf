// The audit log of a store in SQLite, see sqlite_store.h.
#include <fmt/format.h>

#include "server/tenant/audit_chain.h"
#include "server/tenant/sqlite_store.h"

namespace phub::server {
AuditEntry SqliteStore::ReadEntry(const Statement& row) {
  return {.sequence = row.GetInt(0),
          .at = row.GetInt(1),
          .actor = row.GetText(2),
          .peer = row.GetText(3),
          .action = row.GetText(4),
          .subject = row.GetText(5),
          .detail = row.GetText(6),
          .outcome = row.GetText(7),
          .chain = row.GetText(8)};
}

absl::Status SqliteStore::Append(const AuditNote& note) {
  std::int64_t sequence = 0;
  std::string before;
  {
    Statement last(*database_, "SELECT sequence, chain FROM audit ORDER BY sequence DESC LIMIT 1");
    if (last.Next()) {
      sequence = last.GetInt(0);
      before = last.GetText(1);
    }
    if (!last.status().ok()) return last.status();
  }
  const AuditEntry entry = NextEntry(hash_key_, sequence, before, note);
  Statement insert(*database_, fmt::format("INSERT INTO audit ({}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, "
                                           "?)",
                                           kEntryColumns));
  return BindEntry(insert, entry).Run();
}

Statement& SqliteStore::BindEntry(Statement& insert, const AuditEntry& entry) {
  return insert.Int(entry.sequence)
      .Int(entry.at)
      .Text(entry.actor)
      .Text(entry.peer)
      .Text(entry.action)
      .Text(entry.subject)
      .Text(entry.detail)
      .Text(entry.outcome)
      .Blob(entry.chain);
}

absl::StatusOr<std::vector<AuditEntry>> SqliteStore::ReadAudit(std::int64_t after,
                                                               std::int64_t count) {
  std::vector<AuditEntry> entries;
  Statement row(*database_,
                fmt::format("SELECT {} FROM audit WHERE sequence > ? ORDER BY sequence LIMIT ?",
                            kEntryColumns));
  row.Int(after).Int(count);
  while (row.Next()) entries.push_back(ReadEntry(row));
  if (!row.status().ok()) return row.status();
  return entries;
}

absl::StatusOr<std::int64_t> SqliteStore::LastAuditSequence() {
  Statement last(*database_, "SELECT COALESCE(MAX(sequence), 0) FROM audit");
  if (!last.Next()) return last.status();
  return last.GetInt(0);
}

absl::Status SqliteStore::VerifyAudit() {
  Statement row(*database_, fmt::format("SELECT {} FROM audit ORDER BY sequence", kEntryColumns));
  std::string before;
  std::int64_t expected = 1;
  for (; row.Next(); ++expected) {
    const AuditEntry entry = ReadEntry(row);
    if (absl::Status checked = CheckEntry(hash_key_, entry, expected, before); !checked.ok()) {
      return checked;
    }
    before = entry.chain;
  }
  return row.status();
}

}  // namespace phub::server
