// The administrator's changes. Each change is checked, then made durable with its audit entry, and
// only then applied to the directory and to admission. Suspending, revoking and changing quotas
// also work while the disk fails: they are applied and made durable later (store_writer.h). While a
// shared store does not answer, suspending and revoking apply at this daemon alone, and are durable
// on its host (local_changes.h). One thread at a time: the state thread, except for Create and
// where a function says otherwise.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "server/tenant/audit_budget.h"
#include "server/tenant/caller.h"
#include "server/tenant/control_store.h"
#include "server/tenant/directory.h"
#include "server/tenant/local_changes.h"
#include "server/tenant/store_writer.h"

namespace phub::server {

// A change of a quota.
struct QuotaChange {
  Quota set = {};                       // limits to set; the empty ones stay as they are
  std::vector<std::string> clear = {};  // limits to remove: "memory_bytes", "jobs", ...
  std::string encryption = {};          // "required", "optional"; empty: unchanged
};

struct TokenRequest {
  Role role = Role::kTenant;
  std::string tenant = {};
  std::string label = {};
  DurationNs lifetime = 0;  // 0: does not expire
  // Id of a token that this one replaces. The old token expires after `grace`, and the new token
  // has its role and tenant. Empty: none.
  std::string replaces = {};
  DurationNs grace = 0;
};
struct IssuedToken {
  Token token;
  std::string text;  // shown once and not stored
};

// Apply changes to admission (server/control). set_tenant is called after the change is durable.
struct AdmissionHooks {
  std::function<void(const Tenant&)> set_tenant;
  // FAILED_PRECONDITION names the jobs that the tenant still has.
  std::function<absl::Status(const std::string& name)> remove_tenant;
  // Whether changes can be written. While they cannot, admission refuses new jobs.
  std::function<void(const StoreState&)> set_store_state = [](const StoreState&) {};
};

class TenantAdmin : private StoreFollower {
 public:
  // Loads what the store has into the directory and admission.
  static absl::StatusOr<std::unique_ptr<TenantAdmin>> Create(std::unique_ptr<ControlStore> store,
                                                             Directory& directory, Random& random,
                                                             AdmissionHooks hooks);
  ~TenantAdmin() override { store_->StopFollowing(); }

  absl::StatusOr<Tenant> CreateTenant(const Caller& caller, const std::string& name,
                                      const Quota& quota, const std::string& encryption = "");
  absl::StatusOr<Tenant> SetQuota(const Caller& caller, const std::string& name,
                                  const QuotaChange& change);
  absl::StatusOr<Tenant> SuspendTenant(const Caller& caller, const std::string& name,
                                       bool suspended);
  absl::Status DeleteTenant(const Caller& caller, const std::string& name);
  absl::StatusOr<IssuedToken> IssueToken(const Caller& caller, const TokenRequest& request);
  absl::StatusOr<Token> RevokeToken(const Caller& caller, const std::string& id);
  // Membership::Declare, with an audit entry. UNIMPLEMENTED: the daemon belongs to no cluster.
  absl::StatusOr<view::View> DeclareView(const Caller& caller, view::View view,
                                         std::optional<std::int64_t> expected);
  // Records a change that other code makes (drain, evict), or a refused attempt. If the store
  // fails, the entry of an administrator is written later, and the entry of a tenant is counted as
  // suppressed.
  absl::Status Audit(const Caller& caller, AuditNote note);
  // Whether an entry that the caller causes may be written; counts it otherwise. Any thread.
  bool MayRecord(const Caller& caller, TimeNs now);
  // Writes what waits for the disk, and the summaries of suppressed entries. To be called every few
  // seconds; `last`: phubd is stopping.
  void Tick(TimeNs now, bool last = false);
  // A warning for the answers to changes that are not in the store yet; empty: none. Any thread.
  std::string Warning() const;
  ControlStore& store() { return *store_; }

 private:
  TenantAdmin(std::unique_ptr<ControlStore> store, Directory& directory, Random& random,
              AdmissionHooks hooks)
      : store_(std::move(store)),
        writer_(*store_),
        directory_(directory),
        random_(random),
        hooks_(std::move(hooks)) {}
  absl::StatusOr<Tenant> Find(const std::string& name) const;
  // The requested token, without id and hash. `old`: the token that it replaces, if any.
  absl::StatusOr<Token> Plan(const TokenRequest& request, std::optional<Token>& old) const;
  absl::StatusOr<Tenant> Update(const Caller& caller, const Tenant& tenant, const char* action,
                                const std::string& detail);
  void ShareStoreState();
  absl::StatusOr<Tenant> TrySetQuota(const Caller& caller, const std::string& name,
                                     const QuotaChange& change);
  absl::StatusOr<Tenant> TrySuspend(const Caller& caller, const std::string& name, bool suspended);
  absl::Status TryDelete(const Caller& caller, const std::string& name);
  absl::StatusOr<Token> TryRevoke(const Caller& caller, const std::string& id);
  // For changes while a shared store does not answer; tenant_local.cc.
  absl::Status LoadLocal();
  // Whether a suspension or revocation that could not be written may apply here alone.
  bool MayKeep() const { return local_file_ != nullptr && !store_->Reachable().ok(); }
  // `why`: the error of the store.
  absl::Status NotInStoreYet(const std::string& tenant) const;
  absl::StatusOr<Tenant> KeepSuspension(const Caller& caller, const Tenant& tenant,
                                        const absl::Status& why);
  absl::StatusOr<Token> KeepRevocation(const Caller& caller, const Token& token,
                                       const absl::Status& why);
  absl::Status Keep(const LocalChange& change);
  // Writes to the store what was kept, if it answers.
  void WriteLocal();
  absl::Status WriteOut(const LocalChange& change);
  void ReplaceLocal(std::vector<LocalChange> changes);
  std::string MadeHere() const;  // for the audit log
  void Show(const Tenant& tenant);
  // What is in memory follows a change. If the store is shared, the follower has done that.
  void Apply(const Tenant& tenant);
  void Apply(const Token& token);
  void RemoveLeaving();
  // Reads the keys of copied tokens that are missing. The first error.
  absl::Status LoadKeys();
  void NoteMissingKeys();
  // The store is shared; any thread.
  void TenantChanged(const Tenant& tenant) override;
  void TenantRemoved(const std::string& name) override;
  void TokenChanged(const Token& token) override;
  void TokenRemoved(const std::string& id) override;

  const std::unique_ptr<ControlStore> store_;
  StoreWriter writer_;
  AuditBudgets budgets_;
  StoreState shared_state_;  // as admission knows it
  Directory& directory_;
  Random& random_;
  const AdmissionHooks hooks_;
  LocalChangeFile* local_file_ = nullptr;  // null: the store is not shared
  LocalChanges local_;
  bool local_file_is_old_ = false;  // the file does not have what local_ has
  std::string local_fault_;         // why a kept change could not be written, as it was logged
  std::mutex leaving_mutex_;
  // Tenants that another daemon has deleted and that still have jobs here.
  std::set<std::string> leaving_;
  std::string key_fault_;  // under leaving_mutex_; as it was logged
};

// "memory 8GiB, jobs 4", "no limits".
std::string DescribeQuota(const Quota& quota);
// Valid names of tenants, and of identities in certificates: 1 to 63 characters of a-z, 0-9, '-',
// '_' and '.'; the first one is a letter or a digit.
bool IsTenantName(std::string_view name);

}  // namespace phub::server
