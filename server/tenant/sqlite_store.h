// The control store of one daemon, on disk in `state_dir`:
//
//   control.db (+ -wal)   SQLite; it has only keyed hashes of tokens
//   token.key             the key of the hashes; 32 bytes, mode 0600
//   token.key.ID          keys of tokens that were copied from other stores
//
// Without a state_dir everything is in memory and is lost when the daemon stops. The revision of a
// record is the number of its changes. Nobody else writes to the database, so the revision that a
// deferred change will have is known.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/random.h"
#include "server/tenant/control_store.h"
#include "server/tenant/database.h"
#include "server/tenant/store_image.h"

namespace phub::server {

// Whether an existing folder can be state_dir: a directory that only its owner can access.
absl::Status CheckStateDir(const std::string& path);

// Whether a store that was copied elsewhere can be opened. A daemon must not change it any more.
enum class Frozen : std::uint8_t { kRefused, kAccepted };

class SqliteStore final : public ControlStore {
 public:
  // Creates the directory (mode 0700) and its files if they are missing. Empty: in memory.
  static absl::StatusOr<std::unique_ptr<SqliteStore>> Open(const std::string& state_dir,
                                                           Random& random,
                                                           Frozen frozen = Frozen::kRefused);

  absl::StatusOr<std::vector<Tenant>> Tenants() override;
  absl::StatusOr<std::vector<Token>> Tokens() override;
  absl::Status CreateTenant(Tenant& tenant, const AuditNote& note) override;
  absl::Status UpdateTenant(Tenant& tenant, const AuditNote& note) override;
  absl::Status DeleteTenant(const Tenant& tenant, const AuditNote& note) override;
  absl::Status AddToken(Token& token, const AuditNote& note) override;
  absl::Status RotateToken(Token& token, Token& old, const AuditNote& note) override;
  absl::Status RevokeToken(Token& token, const AuditNote& note) override;
  absl::Status Audit(const AuditNote& note) override;
  absl::StatusOr<std::vector<AuditEntry>> ReadAudit(std::int64_t after,
                                                    std::int64_t count) override;
  absl::StatusOr<std::int64_t> LastAuditSequence() override;
  // Entries that were removed at the end of the log cannot be detected.
  absl::Status VerifyAudit() override;
  // Unlimited if the store is in memory, or if the file system gives no answer.
  DiskSpace Space() const override;
  const std::string& hash_key() const override { return hash_key_; }
  absl::StatusOr<std::string> ReadOtherKey(const std::string& key_id) const override;

  // For `phubctl store copy`, see sqlite_copy.cc. Why the store is frozen; empty: it is not.
  absl::StatusOr<std::string> FrozenBecause();
  absl::Status Freeze(const std::string& why, const AuditNote& note);
  absl::Status Thaw(const AuditNote& note);
  // DATA_LOSS, FAILED_PRECONDITION: something is damaged, or a token key is missing.
  absl::StatusOr<StoreImage> Read(const std::string& name);
  // All of the plan in one transaction. The token keys are written to files before.
  absl::Status Import(const CopyPlan& plan, const AuditNote& note);

 private:
  SqliteStore(std::unique_ptr<Database> database, std::string hash_key, std::string path)
      : database_(std::move(database)), hash_key_(std::move(hash_key)), path_(std::move(path)) {}
  absl::Status Append(const AuditNote& note);
  absl::Status InsertToken(const Token& token);
  // Writes what may change of a token.
  absl::Status ChangeToken(const Token& token);
  // After a statement that names a record's revision. ABORTED: no record has it.
  absl::Status CheckChanged(const std::string& what) const;
  absl::Status Apply(const AuditNote& note, const std::function<absl::Status()>& change);
  absl::Status InsertTenant(const Tenant& tenant);
  absl::Status InsertLog(const AuditLog& log);
  absl::StatusOr<std::vector<AuditLog>> OldLogs();
  std::string KeyPath() const;
  // What ReadEntry and BindEntry read and write, in this order.
  static constexpr std::string_view kEntryColumns =
      "sequence, at, actor, peer, action, subject, detail, outcome, chain";
  static AuditEntry ReadEntry(const Statement& row);
  static Statement& BindEntry(Statement& insert, const AuditEntry& entry);

  const std::unique_ptr<Database> database_;
  const std::string hash_key_;
  const std::string path_;  // to the database; empty: in memory
};

}  // namespace phub::server
