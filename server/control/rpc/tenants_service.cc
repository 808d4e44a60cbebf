// phub.v1.Tenants: tenants, quotas, tokens, the audit log.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "phub/v1/tenants.pb.h"
#include "server/control/admin/list_pages.h"
#include "server/control/admin/tenants.h"
#include "server/control/rpc/grpc_service.h"
#include "server/control/rpc/tenant_info.h"
#include "server/tenant/directory.h"

namespace phub::server {
namespace {

constexpr std::size_t kTokensPerPageMax = 1024;
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

// "1700000000000000000:3f2a": after the token of this time and id. Empty: from the first one.
absl::StatusOr<TokenPosition> ParsePosition(const std::string& text) {
  TokenPosition position;
  if (text.empty()) return position;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, position.created_at);
  if (parsed.ec != std::errc() || parsed.ptr == end || *parsed.ptr != ':')
    return absl::InvalidArgumentError("the page token is not from this daemon");
  position.id.assign(parsed.ptr + 1, end);
  return position;
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
    if (call.request.page_size() == 0) return ListAllTenants(call);
    v1::ListTenantsResponse page;
    AddTenants(call.control, call.request, page);
    call.answer(absl::OkStatus(), std::move(page));
  }

  void Handle(RpcCall<rpc::GetTenant>& call) {
    const std::string& asked = call.request.tenant();
    const std::vector<Tenant> found = TenantsAfter("", 1, asked);
    if (asked.empty() || found.empty()) {
      return call.answer(
          absl::NotFoundError(fmt::format("there is no tenant {} on this daemon", asked)), {});
    }
    call.answer(absl::OkStatus(), DescribeTenant(call.control, found.front(),
                                                 call.control.tenants().PushedBytes(found)));
  }

  // Without the lock: there may be many tokens of other tenants.
  void Handle(RpcCall<rpc::ListTokens>& call) {
    struct List {
      absl::Status status;
      v1::ListTokensResponse response;
    };
    const auto make = [this, asked = call.request] {
      const auto list = std::make_shared<List>();
      list->status = AddTokens(asked, list->response);
      return list;
    };
    const auto send = [](Control&, const std::shared_ptr<List>& list,
                         const Answer<v1::ListTokensResponse>& then) {
      then(list->status, std::move(list->response));
    };
    if (directory() == nullptr || shared_.state_thread == nullptr)
      return send(call.control, make(), call.answer);
    RunOnState(shared_, std::move(call.answer), make, send);
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
  // At most count_max tenants whose names follow `after`. only: this tenant; empty: all of them.
  std::vector<Tenant> TenantsAfter(const std::string& after, std::size_t count_max,
                                   const std::string& only) const {
    if (directory() == nullptr) return {};
    if (only.empty()) return directory()->TenantsAfter(after, count_max);
    const std::optional<Tenant> found = directory()->FindTenant(only);
    return found && found->name > after ? std::vector<Tenant>{*found} : std::vector<Tenant>();
  }

  // Under the lock. Appends a page.
  void AddTenants(Control& control, const v1::ListTenantsRequest& request,
                  v1::ListTenantsResponse& list) const {
    const std::size_t count =
        std::min<std::size_t>(request.page_size(), control.tenants().tenants_per_page());
    std::vector<Tenant> found = TenantsAfter(request.page_token(), count + 1, request.tenant());
    const bool is_last = found.size() <= count;
    if (!is_last) found.pop_back();
    const PushedBytes pushed = control.tenants().PushedBytes(found);
    for (const Tenant& tenant : found)
      *list.add_tenants() = DescribeTenant(control, tenant, pushed);
    list.set_next_page_token(is_last ? "" : found.back().name);
  }

  // The whole list for clients that do not request pages, in as many turns as it has pages.
  void ListAllTenants(RpcCall<rpc::ListTenants>& call) const {
    struct List {
      v1::ListTenantsRequest request;  // for the next page
      v1::ListTenantsResponse response;
      std::size_t bytes = 0;
      Answer<v1::ListTenantsResponse> answer;
    };
    const auto list = std::make_shared<List>();
    list->request = call.request;
    list->request.set_page_size(std::numeric_limits<std::uint32_t>::max());
    list->answer = std::move(call.answer);
    const auto more = [this, list](Control& control) {
      const int begin = list->response.tenants_size();
      AddTenants(control, list->request, list->response);
      for (int i = begin; i < list->response.tenants_size(); ++i)
        list->bytes += list->response.tenants(i).ByteSizeLong();
      list->request.set_page_token(list->response.next_page_token());
      const absl::Status fits = CheckWholeList(list->bytes, "tenants");
      if (fits.ok() && !list->request.page_token().empty()) return false;
      list->answer(fits, std::move(list->response));
      return true;
    };
    if (more(call.control)) return;
    shared_.thread.Defer([this, more] {
      while (!shared_.thread.Run({TurnKind::kCall, rpc::ListTenants::kPath}, more)) {
      }
    });
  }

  // Appends a page of tokens, or all of them if no page is requested.
  absl::Status AddTokens(const v1::ListTokensRequest& request, v1::ListTokensResponse& list) const {
    absl::StatusOr<TokenPosition> after = ParsePosition(request.page_token());
    if (!after.ok()) return after.status();
    if (directory() == nullptr) return absl::OkStatus();
    const bool is_whole = request.page_size() == 0;
    const std::size_t count = is_whole
                                  ? std::numeric_limits<std::uint32_t>::max()
                                  : std::min<std::size_t>(request.page_size(), kTokensPerPageMax);
    std::size_t bytes = 0;
    for (const Token& token : directory()->TokensAfter(*after, count + 1, request.tenant())) {
      const auto listed = static_cast<std::size_t>(list.tokens_size());
      if (!is_whole && (listed == count || bytes >= kPageBytes)) {
        list.set_next_page_token(fmt::format("{}:{}", after->created_at, after->id));
        break;
      }
      v1::TokenInfo& info = *list.add_tokens();
      info = ToProto(token);
      bytes += info.ByteSizeLong();
      *after = {token.created_at, token.id};
    }
    return CheckWholeList(bytes, "tokens");
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
                 DescribeTenant(control, *tenant, control.tenants().PushedBytes({*tenant}));
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
