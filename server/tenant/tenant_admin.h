// The administrator's changes: checked, made durable with their audit entry, and only then in force
// (in the directory and in admission). One thread at a time: the state thread's, but for Create.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "server/tenant/caller.h"
#include "server/tenant/control_store.h"
#include "server/tenant/directory.h"

namespace phub::server {

// What of a quota is to change.
struct QuotaChange {
  Quota set = {};                       // limits that are given
  std::vector<std::string> clear = {};  // limits to be lifted: "memory_bytes", "jobs", ...
  std::string encryption = {};          // "required", "optional"; empty: as it was
};

struct TokenRequest {
  Role role = Role::kTenant;
  std::string tenant = {};
  std::string label = {};
  DurationNs lifetime = 0;  // 0: does not expire
  std::string replaces =
      {};  // id of a token, which then expires in `grace`; role and tenant are its
  DurationNs grace = 0;
};
struct IssuedToken {
  Token token;
  std::string text;  // shown once; kept nowhere
};

// How changes reach admission (server/control): called after they are durable.
struct AdmissionHooks {
  std::function<void(const Tenant&)> set_tenant;
  // FAILED_PRECONDITION names the jobs that the tenant still has.
  std::function<absl::Status(const std::string& name)> remove_tenant;
};

class TenantAdmin {
 public:
  // Loads what the store has into the directory and admission.
  static absl::StatusOr<std::unique_ptr<TenantAdmin>> Create(std::unique_ptr<ControlStore> store,
                                                             Directory& directory, Random& random,
                                                             AdmissionHooks hooks);

  absl::StatusOr<Tenant> CreateTenant(const Caller& caller, const std::string& name,
                                      const Quota& quota, const std::string& encryption = "");
  absl::StatusOr<Tenant> SetQuota(const Caller& caller, const std::string& name,
                                  const QuotaChange& change);
  absl::StatusOr<Tenant> SuspendTenant(const Caller& caller, const std::string& name,
                                       bool suspended);
  absl::Status DeleteTenant(const Caller& caller, const std::string& name);
  absl::StatusOr<IssuedToken> IssueToken(const Caller& caller, const TokenRequest& request);
  absl::StatusOr<Token> RevokeToken(const Caller& caller, const std::string& id);
  // Of a change that is made elsewhere (drain, evict), or of a refused attempt.
  absl::Status Audit(const AuditNote& note) { return store_->Audit(note); }
  ControlStore& store() { return *store_; }

 private:
  TenantAdmin(std::unique_ptr<ControlStore> store, Directory& directory, Random& random,
              AdmissionHooks hooks)
      : store_(std::move(store)),
        directory_(directory),
        random_(random),
        hooks_(std::move(hooks)) {}
  absl::StatusOr<Tenant> Find(const std::string& name) const;
  // The token that is asked for, without id and hash; `old`: what it takes the place of.
  absl::StatusOr<Token> Plan(const TokenRequest& request, std::optional<Token>& old) const;
  absl::StatusOr<Tenant> Update(const Caller& caller, const Tenant& tenant, const char* action,
                                const std::string& detail);

  const std::unique_ptr<ControlStore> store_;
  Directory& directory_;
  Random& random_;
  const AdmissionHooks hooks_;
};

// "memory 8GiB, jobs 4", "no limits".
std::string DescribeQuota(const Quota& quota);
// Names of tenants, and of identities in certificates: 1 to 63 of a-z, 0-9, '-', '_' and '.', and
// the first one a letter or a digit.
bool IsTenantName(std::string_view name);

}  // namespace phub::server
