// The control store: tenants, quotas, tokens and the audit log, where they are durable. Two
// implementations:
//
//   sqlite_store.h   of one daemon, on its own disk or in memory
//   server/etcd      of all daemons of a cluster, in etcd
//
// Every change and its audit entry are one transaction: at any instant either both are stored or
// neither, and every acknowledged change is stored.
//
// A change names the revision of the record that it was decided on (Tenant::revision,
// Token::revision; 0 for a new record) and sets the record's new one. ABORTED: another change was
// made first; read the record again and decide again. A change fails with the engine's
// error (RESOURCE_EXHAUSTED: the disk is full; UNAVAILABLE: the store cannot be reached), and then
// nothing has changed, unless the message says otherwise.
//
// One thread at a time, except Fault(): any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/tenant/grants.h"
#include "server/tenant/membership.h"
#include "server/tenant/tenant.h"

namespace phub::server {

// The part of an AuditEntry that describes the change, without its place in the log.
struct AuditNote {
  std::string actor = {};
  std::string peer = {};
  std::string action = {};
  std::string subject = {};
  std::string detail = {};
  std::string outcome = "ok";
  WallTimeNs at = 0;  // 0: now. Set if the entry may be written later than the change
  friend bool operator==(const AuditNote&, const AuditNote&) = default;
};

class LocalChangeFile;

// The space that the store has and uses.
struct DiskSpace {
  std::uint64_t free_bytes = UINT64_MAX;  // on its file system, for phubd's user
  std::uint64_t total_bytes = UINT64_MAX;
  std::uint64_t used_bytes = 0;  // by the store
};

// Is called when records of a shared store change. Any thread, one at a time; must not call the
// store.
class StoreFollower {
 public:
  virtual ~StoreFollower() = default;
  virtual void TenantChanged(const Tenant& tenant) = 0;
  virtual void TenantRemoved(const std::string& name) = 0;
  virtual void TokenChanged(const Token& token) = 0;
  virtual void TokenRemoved(const std::string& id) = 0;
};

class ControlStore {
 public:
  virtual ~ControlStore() = default;

  virtual absl::StatusOr<std::vector<Tenant>> Tenants() = 0;  // by name
  virtual absl::StatusOr<std::vector<Token>> Tokens() = 0;    // oldest first

  virtual absl::Status CreateTenant(Tenant& tenant, const AuditNote& note) = 0;
  virtual absl::Status UpdateTenant(Tenant& tenant, const AuditNote& note) = 0;
  // And its tokens.
  virtual absl::Status DeleteTenant(const Tenant& tenant, const AuditNote& note) = 0;
  virtual absl::Status AddToken(Token& token, const AuditNote& note) = 0;
  // Adds a token that replaces another one. `old` has the time at which it now expires.
  virtual absl::Status RotateToken(Token& token, Token& old, const AuditNote& note) = 0;
  // The token has the time of its revocation.
  virtual absl::Status RevokeToken(Token& token, const AuditNote& note) = 0;
  virtual absl::Status Audit(const AuditNote& note) = 0;

  // Entries with a sequence above `after`, oldest first, at most `count`.
  virtual absl::StatusOr<std::vector<AuditEntry>> ReadAudit(std::int64_t after,
                                                            std::int64_t count) = 0;
  virtual absl::StatusOr<std::int64_t> LastAuditSequence() = 0;
  // DATA_LOSS names the first entry that was changed or is missing.
  virtual absl::Status VerifyAudit() = 0;

  virtual DiskSpace Space() const = 0;
  // The key of the tokens' hashes.
  virtual const std::string& hash_key() const = 0;
  // The key of tokens that were copied from another store (Token::key_id). Any thread.
  virtual absl::StatusOr<std::string> ReadOtherKey(const std::string& key_id) const = 0;

  // Whether other daemons change it, too. Then the follower hears of all changes, also of this
  // daemon's own, before they return; and a change of a record cannot wait for better times.
  virtual bool is_shared() const { return false; }
  // Calls the follower from now on, also for what has changed since Tenants() and Tokens(). It must
  // outlive the store, or StopFollowing().
  virtual absl::Status Follow(StoreFollower&) { return absl::OkStatus(); }
  virtual void StopFollowing() {}
  // Why what is in memory of a shared store may be too old for new jobs; empty: it is not.
  virtual std::string Fault() const { return {}; }
  // Why a shared store does not answer; OK: it does, as far as known. Any thread.
  virtual absl::Status Reachable() const { return absl::OkStatus(); }
  // Where this daemon keeps changes while a shared store does not answer; null: it keeps none.
  virtual LocalChangeFile* local_changes() { return nullptr; }
  // A record of a store with local_changes(). NOT_FOUND: it does not exist; another error: it
  // cannot be read.
  virtual absl::StatusOr<Tenant> FindTenant(const std::string&) {
    return absl::UnimplementedError("the store keeps no local changes");
  }
  virtual absl::StatusOr<Token> FindToken(const std::string& /*tenant*/, const std::string&) {
    return absl::UnimplementedError("the store keeps no local changes");
  }
  // Calls the follower with a record again, as if it had changed.
  virtual void RepeatTenant(const std::string&) {}
  virtual void RepeatToken(const std::string& /*tenant*/, const std::string& /*id*/) {}
  // How daemons share quotas; null: quotas are this daemon's own.
  virtual Grants* grants() { return nullptr; }
  // The daemons of the cluster; null: this daemon has none.
  virtual Membership* membership() { return nullptr; }
};

}  // namespace phub::server
