// The control store of a cluster, in etcd. Below a prefix (docs/cluster.md):
//
//   /cluster               the cluster's id; its tag shows which token key the cluster has
//   /head                  the end of the audit log; every change compares and writes it
//   /tenants/NAME
//   /tokens/TENANT/ID      '@' instead of TENANT: a token of another role
//   /audit/SEQUENCE
//   /chains/ID/SEQUENCE    audit logs of other stores, which were copied (store_copy.h)
//   /frozen                while it exists, nothing is changed
//   /daemons/ID            a running daemon (daemon_place.h)
//   /endpoints/PLACE       the daemon that was last at a place of the view (members/seat.h)
//   /grants/TENANT/ID      its part of the tenant's quotas (grant_keeper.h)
//   /places/PLACE          the daemon that is there
//   /removals/TENANT       a daemon wants to delete the tenant (removal.h)
//   /view                  the declared membership (members/cluster_members.h)
//
// A change is one transaction: if the record and the head have the revisions that are in memory,
// the record, the next audit entry and the new head are written. So changes of all daemons have one
// order, which is that of the audit log.
//
// Reads come from memory (mirror.h), which the watch keeps up to date (watch_loop.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "server/etcd/client.h"
#include "server/etcd/grant_keeper.h"
#include "server/etcd/local_file.h"
#include "server/etcd/members/cluster_members.h"
#include "server/etcd/mirror.h"
#include "server/etcd/record.h"
#include "server/etcd/removal.h"
#include "server/etcd/watch_loop.h"
#include "server/tenant/control_store.h"

namespace phub::server::etcd {

struct StoreOptions {
  ClientOptions client;
  std::string prefix;          // "/phub"
  std::string token_key_path;  // created if the cluster is new
  DurationNs stale_max = 0;    // control_store_stale_max
  std::string daemon_id;       // empty: from a file next to the token key
  std::string endpoint;        // where others reach this daemon
  view::Place place;           // of this daemon in the view; empty: none
  DurationNs quota_grace = 0;
};

// Whether phubd can use the files of the options: certificates, and the token key if it exists.
absl::Status CheckFiles(const StoreOptions& options);

class EtcdStore final : public ControlStore {
 public:
  // Reads everything. Waits while etcd does not answer, and logs that; `stopped` is called
  // meanwhile, and says when to give up (CANCELLED). Other errors: wrong token key, no permission.
  static absl::StatusOr<std::unique_ptr<EtcdStore>> Open(const StoreOptions& options,
                                                         Random& random,
                                                         const std::function<bool()>& stopped);
  ~EtcdStore() override { StopFollowing(); }

  absl::StatusOr<std::vector<Tenant>> Tenants() override { return mirror_.Tenants(); }
  absl::StatusOr<std::vector<Token>> Tokens() override { return mirror_.Tokens(); }
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
  // The newest entries only: the log of a cluster may be long.
  absl::Status VerifyAudit() override;
  // used_bytes: an estimate, of the audit log.
  DiskSpace Space() const override;
  const std::string& hash_key() const override { return token_key_; }
  absl::StatusOr<std::string> ReadOtherKey(const std::string& key_id) const override;
  bool is_shared() const override { return true; }
  absl::Status Follow(StoreFollower& follower) override;
  void StopFollowing() override;
  std::string Fault() const override { return loop_.Fault(); }
  absl::Status Reachable() const override { return loop_.reachable(); }
  LocalChangeFile* local_changes() override { return &local_; }
  absl::StatusOr<Tenant> FindTenant(const std::string& name) override {
    return mirror_.FindTenant(TenantKey(name));
  }
  absl::StatusOr<Token> FindToken(const std::string& tenant, const std::string& id) override {
    return mirror_.FindToken(TokenKey({.id = id, .tenant = tenant}));
  }
  void RepeatTenant(const std::string& name) override { mirror_.Repeat(TenantKey(name)); }
  void RepeatToken(const std::string& tenant, const std::string& id) override {
    mirror_.Repeat(TokenKey({.id = id, .tenant = tenant}));
  }
  Grants* grants() override { return &grants_; }
  Membership* membership() override { return &members_; }

 private:
  // A record that a change writes or removes, and the revision that it was decided on.
  struct Write {
    std::string key;
    std::string value;  // empty: remove it
    std::int64_t revision = 0;
    std::string what;  // "tenant acme"
  };
  struct Change {
    std::vector<Write> writes;
    std::string tenant;          // must exist; empty: none
    std::string no_tokens;       // a tenant whose tokens are removed
    Removal* removal = nullptr;  // of that tenant; null: none
  };
  static PlaceOptions MakePlace(const StoreOptions& options, std::int64_t cluster_revision,
                                Random& random);
  EtcdStore(const StoreOptions& options, Random& random, std::unique_ptr<Client> client,
            std::string token_key, std::string cluster, std::int64_t cluster_revision);
  absl::Status Refused(const absl::Status& status);
  // Returns the revision that the records have then.
  absl::StatusOr<std::int64_t> Commit(const Change& change, const AuditNote& note);
  pb::TxnRequest MakeTransaction(const Change& change, std::int64_t head_revision,
                                 const AuditEntry& entry, const std::string& id) const;
  // After a transaction that compared and found something else. OK: the same change had been made
  // by an earlier attempt whose answer was lost.
  absl::Status Explain(const Change& change, const pb::TxnResponse& response, const std::string& id,
                       std::int64_t& made_at);
  void Remember(const Change& change, const AuditEntry& entry, std::int64_t revision);
  absl::StatusOr<std::vector<Item>> ReadMembers();
  absl::StatusOr<std::vector<AuditEntry>> ReadEntries(std::int64_t after, std::int64_t count);
  std::string Full(std::string_view key) const { return prefix_ + std::string(key); }

  const std::string prefix_;
  Random& random_;
  const std::string token_key_;
  const std::string token_key_path_;
  const Records records_;
  const std::int64_t cluster_revision_;
  const std::unique_ptr<Client> client_;
  ClusterMembers members_;
  Mirror mirror_;
  WatchLoop loop_;
  GrantKeeper grants_;
  LocalFile local_;
};

}  // namespace phub::server::etcd
