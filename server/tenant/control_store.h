// The control store: tenants, quotas, tokens and the audit log, on disk in `state_dir`:
//
//   control.db (+ -wal)   SQLite; it has only keyed hashes of tokens
//   token.key             the key of the hashes; 32 bytes, mode 0600
//
// Every change and its audit entry are one transaction: after a kill at any instant either both are
// stored or neither, and every acknowledged change is stored. Without a state_dir everything is in
// memory and is lost when the daemon stops.
//
// One thread at a time. A change fails with SQLite's error (RESOURCE_EXHAUSTED: the disk is full),
// and then nothing has changed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/random.h"
#include "server/tenant/database.h"
#include "server/tenant/tenant.h"

namespace phub::server {

// The part of an AuditEntry that describes the change, without its place in the log.
struct AuditNote {
  std::string actor;
  std::string peer;
  std::string action;
  std::string subject;
  std::string detail;
  std::string outcome = "ok";
  WallTimeNs at = 0;  // 0: now. Set if the entry may be written later than the change
};

// The space that the store has and uses.
struct DiskSpace {
  std::uint64_t free_bytes = UINT64_MAX;  // on its file system, for phubd's user
  std::uint64_t total_bytes = UINT64_MAX;
  std::uint64_t used_bytes = 0;  // by the store
};

// Whether an existing folder can be state_dir: a directory that only its owner can access.
absl::Status CheckStateDir(const std::string& path);

class ControlStore {
 public:
  // Creates the directory (mode 0700) and its files if they are missing. Empty: in memory.
  static absl::StatusOr<std::unique_ptr<ControlStore>> Open(const std::string& state_dir,
                                                            Random& random);

  absl::StatusOr<std::vector<Tenant>> Tenants();  // by name
  absl::StatusOr<std::vector<Token>> Tokens();    // oldest first

  absl::Status CreateTenant(const Tenant& tenant, const AuditNote& note);
  absl::Status UpdateTenant(const Tenant& tenant, const AuditNote& note);
  absl::Status DeleteTenant(const std::string& name, const AuditNote& note);  // and its tokens
  absl::Status AddToken(const Token& token, const AuditNote& note);
  // Adds a token that replaces another one; the other one expires at `old_expires_at`.
  absl::Status RotateToken(const Token& token, const std::string& old_id, WallTimeNs old_expires_at,
                           const AuditNote& note);
  absl::Status RevokeToken(const std::string& id, WallTimeNs at, const AuditNote& note);
  absl::Status Audit(const AuditNote& note);

  // Entries with a sequence above `after`, oldest first, at most `count`.
  absl::StatusOr<std::vector<AuditEntry>> ReadAudit(std::int64_t after, std::int64_t count);
  absl::StatusOr<std::int64_t> LastAuditSequence();
  // DATA_LOSS names the first entry that was changed or is missing. Entries that were removed at
  // the end of the log cannot be detected.
  absl::Status VerifyAudit();

  // Unlimited if the store is in memory, or if the file system gives no answer.
  DiskSpace Space() const;

  const std::string& hash_key() const { return hash_key_; }

 private:
  ControlStore(std::unique_ptr<Database> database, std::string hash_key, std::string path)
      : database_(std::move(database)), hash_key_(std::move(hash_key)), path_(std::move(path)) {}
  absl::Status Append(const AuditNote& note);
  std::string ChainOf(const AuditEntry& entry, const std::string& before) const;
  template <typename Change>
  absl::Status Apply(const AuditNote& note, Change change);

  const std::unique_ptr<Database> database_;
  const std::string hash_key_;
  const std::string path_;  // to the database; empty: in memory
};

}  // namespace phub::server
