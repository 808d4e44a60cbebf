// phub.v1.Tenants: tenants, quotas, tokens, the audit log.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "phub/v1/tenants.pb.h"
#include "server/control/admin/tenants.h"
#include "server/control/rpc/grpc_service.h"

namespace phub::server {
namespace {

constexpr std::int64_t kAuditCountMax = 1000;
constexpr std::int64_t kAuditCountDefault = 100;

Quota FromProto(const v1::Quota& given) {
  Quota quota;
  if (given.has_memory_bytes()) quota.memory_bytes = given.memory_bytes();
  if (given.has_jobs()) quota.jobs = given.jobs();
  if (given.has_workers()) quota.workers = given.workers();
  if (given.has_keys()) quota.keys = given.keys();
  if (given.has_weight()) quota.weight = given.weight();
  if (given.has_bandwidth_bytes()) quota.bandwidth_bytes = given.bandwidth_bytes();
  return quota;
}

using PushedBytes = std::map<std::string, std::uint64_t>;  // [tenant]

v1::TenantInfo ToProto(Control& control, const Tenant& tenant, const PushedBytes& pushed) {
  v1::TenantInfo info;
  info.set_name(tenant.name);
  info.set_state(tenant.suspended ? "suspended" : "active");
  v1::Quota& quota = *info.mutable_quota();
  if (tenant.quota.memory_bytes) quota.set_memory_bytes(*tenant.quota.memory_bytes);
  if (tenant.quota.jobs) quota.set_jobs(*tenant.quota.jobs);
  if (tenant.quota.workers) quota.set_workers(*tenant.quota.workers);
  if (tenant.quota.keys) quota.set_keys(*tenant.quota.keys);
  if (tenant.quota.weight) quota.set_weight(*tenant.quota.weight);
  if (tenant.quota.bandwidth_bytes) quota.set_bandwidth_bytes(*tenant.quota.bandwidth_bytes);
  const Usage used = control.tenants().UsageOf(tenant.name);
  info.mutable_usage()->set_memory_bytes(used.memory_bytes);
  info.mutable_usage()->set_jobs(used.jobs);
  info.mutable_usage()->set_workers(used.workers);
  info.mutable_usage()->set_keys(used.keys);
  const auto bytes = pushed.find(tenant.name);
  info.mutable_usage()->set_gradient_bytes(bytes == pushed.end() ? 0 : bytes->second);
  info.set_created_at_ns(tenant.created_at);
  info.set_encryption(tenant.encryption_required ? "required" : "optional");
  return info;
}

v1::TokenInfo ToProto(const Token& token) {
  v1::TokenInfo info;
  info.set_id(token.id);
  info.set_role(ToString(token.role));
  info.set_tenant(token.tenant);
  info.set_label(token.label);
  info.set_created_at_ns(token.created_at);
  info.set_expires_at_ns(token.expires_at);
  info.set_revoked_at_ns(token.revoked_at);
  info.set_created_by(token.created_by);
  const bool expired = token.expires_at != 0 && WallNow() >= token.expires_at;
  info.set_state(token.revoked_at != 0 ? "revoked" : expired ? "expired" : "valid");
  return info;
}

v1::AuditRecord ToProto(const AuditEntry& entry) {
  v1::AuditRecord record;
  record.set_sequence(entry.sequence);
  record.set_at_ns(entry.at);
  record.set_actor(entry.actor);
  record.set_peer(entry.peer);
  record.set_action(entry.action);
  record.set_subject(entry.subject);
  record.set_detail(entry.detail);
  record.set_outcome(entry.outcome);
  return record;
}

absl::StatusOr<std::vector<AuditEntry>> ReadAudit(ControlStore& store,
                                                  const v1::ListAuditRequest& request) {
  const std::int64_t count = request.count_max() == 0
                                 ? kAuditCountDefault
                                 : std::min<std::int64_t>(request.count_max(), kAuditCountMax);
  std::int64_t after = std::max<std::int64_t>(0, request.after());
  if (request.newest()) {
    const absl::StatusOr<std::int64_t> last = store.LastAuditSequence();
    if (!last.ok()) return last.status();
    after = std::max(after, *last - count);
  }
  return store.ReadAudit(after, count);
}

class TenantsHandlers {
 public:
  explicit TenantsHandlers(Shared& shared) : shared_(shared) {}

  void Handle(RpcCall<rpc::WhoAmI>& call) {
    v1::Identity identity;
    identity.set_name(call.caller.name);
    identity.set_role(ToString(call.caller.role));
    identity.set_tenant(call.caller.tenant);
    identity.set_identities(shared_.access.identities());
    call.answer(absl::OkStatus(), identity);
  }

  void Handle(RpcCall<rpc::ListTenants>& call) {
    const PushedBytes pushed = call.control.tenants().PushedBytes(call.request.tenant());
    v1::ListTenantsResponse list;
    for (const Tenant& tenant : TenantsNamed(call.request.tenant()))
      *list.add_tenants() = ToProto(call.control, tenant, pushed);
    call.answer(absl::OkStatus(), list);
  }

  void Handle(RpcCall<rpc::GetTenant>& call) {
    const std::string& asked = call.request.tenant();
    const std::vector<Tenant> found = TenantsNamed(asked);
    if (asked.empty() || found.empty()) {
      return call.answer(
          absl::NotFoundError(fmt::format("there is no tenant {} on this daemon", asked)), {});
    }
    call.answer(absl::OkStatus(),
                ToProto(call.control, found.front(), call.control.tenants().PushedBytes(asked)));
  }

  // Without the lock: there may be many tokens of other tenants.
  void Handle(RpcCall<rpc::ListTokens>& call) {
    if (directory() == nullptr || shared_.state_thread == nullptr)
      return call.answer(absl::OkStatus(), TokensOf(call.request.tenant()));
    RunOnState(
        shared_, std::move(call.answer),
        [this, tenant = call.request.tenant()] {
          return std::make_shared<v1::ListTokensResponse>(TokensOf(tenant));
        },
        [](Control&, const std::shared_ptr<v1::ListTokensResponse>& list,
           const Answer<v1::ListTokensResponse>& then) {
          then(absl::OkStatus(), std::move(*list));
        });
  }

  void Handle(RpcCall<rpc::ListAudit>& call) {
    RunOnState(
        shared_, std::move(call.answer),
        [this, asked = call.request] { return ReadAudit(shared_.admin->store(), asked); },
        [](Control&, const absl::StatusOr<std::vector<AuditEntry>>& entries,
           const Answer<v1::ListAuditResponse>& then) {
          if (!entries.ok()) return then(entries.status(), {});
          v1::ListAuditResponse list;
          for (const AuditEntry& entry : *entries) *list.add_entries() = ToProto(entry);
          then(absl::OkStatus(), list);
        });
  }

  void Handle(RpcCall<rpc::CreateTenant>& call) {
    ChangeTenant(call, [](TenantAdmin& admin, const Caller& caller,
                          const v1::CreateTenantRequest& asked) {
      return admin.CreateTenant(caller, asked.name(), FromProto(asked.quota()), asked.encryption());
    });
  }
  void Handle(RpcCall<rpc::SetQuota>& call) {
    ChangeTenant(call, [](TenantAdmin& admin, const Caller& caller,
                          const v1::SetQuotaRequest& asked) {
      return admin.SetQuota(
          caller, asked.tenant(),
          {FromProto(asked.set()), {asked.lift().begin(), asked.lift().end()}, asked.encryption()});
    });
  }
  void Handle(RpcCall<rpc::SuspendTenant>& call) {
    ChangeTenant(
        call, [](TenantAdmin& admin, const Caller& caller, const v1::SuspendTenantRequest& asked) {
          return admin.SuspendTenant(caller, asked.tenant(), !asked.resume());
        });
  }

  void Handle(RpcCall<rpc::DeleteTenant>& call) {
    Change(
        call,
        [](TenantAdmin& admin, const Caller& caller, const v1::DeleteTenantRequest& asked) {
          return admin.DeleteTenant(caller, asked.tenant());
        },
        [](Control&, const absl::Status& result, const Answer<v1::DeleteTenantResponse>& then) {
          then(result, {});
        });
  }

  void Handle(RpcCall<rpc::IssueToken>& call) {
    Change(
        call,
        [this](TenantAdmin& admin, const Caller& caller, const v1::IssueTokenRequest& asked) {
          return Issue(admin, caller, asked);
        },
        [](Control&, const absl::StatusOr<IssuedToken>& issued,
           const Answer<v1::IssuedToken>& then) {
          if (!issued.ok()) return then(issued.status(), {});
          v1::IssuedToken message;
          *message.mutable_info() = ToProto(issued->token);
          message.set_token(issued->text);
          then(absl::OkStatus(), message);
        });
  }

  void Handle(RpcCall<rpc::RevokeToken>& call) {
    Change(
        call,
        [](TenantAdmin& admin, const Caller& caller, const v1::RevokeTokenRequest& asked) {
          return admin.RevokeToken(caller, asked.id());
        },
        [this](Control&, const absl::StatusOr<Token>& token, const Answer<v1::TokenInfo>& then) {
          if (!token.ok()) return then(token.status(), {});
          v1::TokenInfo info = ToProto(*token);
          info.set_warning(shared_.admin->Warning());
          then(absl::OkStatus(), info);
        });
  }

 private:
  const Directory* directory() const { return shared_.access.directory(); }
  // An empty tenant: all of them.
  v1::ListTokensResponse TokensOf(const std::string& tenant) const {
    v1::ListTokensResponse list;
    if (directory() == nullptr) return list;
    for (const Token& token : directory()->Tokens(tenant)) *list.add_tokens() = ToProto(token);
    return list;
  }
  // An empty name: all of them. Others are not copied.
  std::vector<Tenant> TenantsNamed(const std::string& name) const {
    if (directory() == nullptr) return {};
    if (name.empty()) return directory()->Tenants();
    const std::optional<Tenant> found = directory()->FindTenant(name);
    return found ? std::vector<Tenant>{*found} : std::vector<Tenant>();
  }

  // Runs work(admin, caller, request) on the control store's thread, then finish(control, result,
  // answer) under the lock.
  template <typename Rpc, typename Work, typename Finish>
  void Change(RpcCall<Rpc>& call, Work work, Finish finish) {
    RunOnState(
        shared_, std::move(call.answer),
        [this, caller = call.caller, asked = call.request, work] {
          return work(*shared_.admin, caller, asked);
        },
        finish);
  }
  template <typename Rpc, typename Work>
  void ChangeTenant(RpcCall<Rpc>& call, Work work) {
    Change(call, work,
           [this](Control& control, const absl::StatusOr<Tenant>& tenant,
                  const Answer<v1::TenantInfo>& then) {
             if (!tenant.ok()) return then(tenant.status(), {});
             v1::TenantInfo info =
                 ToProto(control, *tenant, control.tenants().PushedBytes(tenant->name));
             info.set_warning(shared_.admin->Warning());
             then(absl::OkStatus(), info);
           });
  }

  absl::StatusOr<IssuedToken> Issue(TenantAdmin& admin, const Caller& caller,
                                    const v1::IssueTokenRequest& asked) {
    if (!shared_.access.identities()) {
      return absl::FailedPreconditionError(
          "this daemon uses no identities, so it does not check tokens or store them; set "
          "state_dir first");
    }
    const std::optional<Role> role = asked.role().empty() ? Role::kTenant : ParseRole(asked.role());
    if (!role.has_value()) {
      return absl::InvalidArgumentError(fmt::format(
          "there is no role \"{}\"; use tenant, operator, admin or server", asked.role()));
    }
    return admin.IssueToken(caller, {.role = *role,
                                     .tenant = asked.tenant(),
                                     .label = asked.label(),
                                     .lifetime = asked.lifetime_ns(),
                                     .replaces = asked.replaces(),
                                     .grace = asked.grace_ns()});
  }

  Shared& shared_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeTenantsService(Shared& shared) {
  return std::make_unique<GrpcService<TenantsHandlers, rpc::Tenants>>(shared);
}

}  // namespace phub::server
