#include "server/tenant/tenant_admin.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/log.h"
#include "common/base/status_text.h"
#include "common/base/units.h"
#include "server/core/schedule/turn.h"
#include "server/tenant/token.h"

namespace phub::server {
namespace {

constexpr std::size_t kTenantNameBytesMax = 63;
constexpr std::size_t kLabelBytesMax = 200;
constexpr std::size_t kTenantsMax = 10'000;
constexpr std::uint64_t kBandwidthMin = 1 << 20;  // bytes per second: a few chunks
constexpr std::size_t kTokensMax = 100'000;       // revoked and expired tokens count, too

AuditNote Note(const Caller& caller, const char* action, const std::string& subject,
               const std::string& detail) {
  return {caller.name, caller.peer, action, subject, detail, "ok", WallNow()};
}

bool IsLabel(const std::string& label) {
  return label.size() <= kLabelBytesMax && std::none_of(label.begin(), label.end(), [](char c) {
           return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
         });
}

absl::Status Lift(Quota& quota, const std::string& limit) {
  if (limit == "memory_bytes") {
    quota.memory_bytes.reset();
  } else if (limit == "jobs") {
    quota.jobs.reset();
  } else if (limit == "workers") {
    quota.workers.reset();
  } else if (limit == "keys") {
    quota.keys.reset();
  } else if (limit == "weight") {
    quota.weight.reset();
  } else if (limit == "bandwidth_bytes") {
    quota.bandwidth_bytes.reset();
  } else {
    return absl::InvalidArgumentError(
        fmt::format("unknown limit \"{}\"; limits are memory_bytes, jobs, workers, keys, weight "
                    "and bandwidth_bytes",
                    limit));
  }
  return absl::OkStatus();
}

absl::Status CheckQuota(const Quota& quota) {
  if (quota.weight && (*quota.weight < 1 || *quota.weight > schedule::kWeightMax)) {
    return absl::InvalidArgumentError(
        fmt::format("weight is {}; it must be from 1 to {} (default: {})", *quota.weight,
                    schedule::kWeightMax, schedule::kWeightDefault));
  }
  if (quota.bandwidth_bytes && *quota.bandwidth_bytes < kBandwidthMin) {
    return absl::InvalidArgumentError(
        fmt::format("bandwidth is {} bytes per second; it must be at least {}. To stop a tenant, "
                    "suspend it and evict its jobs",
                    *quota.bandwidth_bytes, kBandwidthMin));
  }
  return absl::OkStatus();
}

constexpr const char* kRequired = "required";
constexpr const char* kOptional = "optional";

absl::Status ApplyEncryption(Tenant& tenant, const std::string& text) {
  if (text.empty()) return absl::OkStatus();
  if (text != kRequired && text != kOptional) {
    return absl::InvalidArgumentError(
        fmt::format("encryption must be \"{}\" or \"{}\", not \"{}\"", kRequired, kOptional, text));
  }
  tenant.encryption_required = text == kRequired;
  return absl::OkStatus();
}

const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename Value>
const absl::Status& StatusOf(const absl::StatusOr<Value>& result) {
  return result.status();
}

// Another daemon may change a record between a decision and its transaction; then it is decided
// again on the new record.
template <typename Change>
auto Decide(Change change) {
  constexpr int kDecisionsMax = 5;
  auto result = change();
  for (int i = 1; i < kDecisionsMax && absl::IsAborted(StatusOf(result)); ++i) result = change();
  return result;
}

std::string DescribeLimits(const Tenant& tenant) {
  return DescribeQuota(tenant.quota) + (tenant.encryption_required ? ", encryption required" : "");
}

}  // namespace

std::string DescribeQuota(const Quota& quota) {
  std::string text;
  const auto add = [&](const std::string& limit) { text += (text.empty() ? "" : ", ") + limit; };
  if (quota.memory_bytes) add("memory " + ExactBytes(*quota.memory_bytes));
  if (quota.jobs) add(fmt::format("jobs {}", *quota.jobs));
  if (quota.workers) add(fmt::format("workers {}", *quota.workers));
  if (quota.keys) add(fmt::format("keys {}", *quota.keys));
  if (quota.weight) add(fmt::format("weight {}", *quota.weight));
  if (quota.bandwidth_bytes) add("bandwidth " + ExactBytes(*quota.bandwidth_bytes) + "/s");
  return text.empty() ? "no limits" : text;
}

bool IsTenantName(std::string_view name) {
  const auto plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  if (name.empty() || name.size() > kTenantNameBytesMax || !plain(name.front())) return false;
  return std::all_of(name.begin(), name.end(),
                     [&](char c) { return plain(c) || c == '-' || c == '_' || c == '.'; });
}

absl::StatusOr<std::unique_ptr<TenantAdmin>> TenantAdmin::Create(
    std::unique_ptr<ControlStore> store, Directory& directory, Random& random,
    AdmissionHooks hooks) {
  std::unique_ptr<TenantAdmin> admin(
      new TenantAdmin(std::move(store), directory, random, std::move(hooks)));
  const auto tenants = admin->store_->Tenants();
  if (!tenants.ok()) return tenants.status();
  const auto tokens = admin->store_->Tokens();
  if (!tokens.ok()) return tokens.status();
  directory.SetHashKey(admin->store_->hash_key());
  if (absl::Status local = admin->LoadLocal(); !local.ok()) return local;
  for (const Tenant& tenant : *tenants) admin->Show(tenant);
  for (const Token& token : *tokens) directory.SetToken(admin->local_.Over(token));
  if (absl::Status keys = admin->LoadKeys(); !keys.ok()) return keys;
  if (absl::Status status = admin->store_->Follow(*admin); !status.ok()) return status;
  // Report a damaged audit log, but start, so that the error can be investigated.
  if (absl::Status status = admin->store_->VerifyAudit(); !status.ok()) {
    LogError("event=audit_log_broken error=\"{}\"", MessageOf(status));
  }
  return admin;
}

absl::StatusOr<Tenant> TenantAdmin::Find(const std::string& name) const {
  if (std::optional<Tenant> tenant = directory_.FindTenant(name)) return *tenant;
  return absl::NotFoundError(fmt::format("there is no tenant {} on this daemon", name));
}

absl::StatusOr<Tenant> TenantAdmin::CreateTenant(const Caller& caller, const std::string& name,
                                                 const Quota& quota,
                                                 const std::string& encryption) {
  if (!IsTenantName(name)) {
    return absl::InvalidArgumentError(
        fmt::format("a tenant's name must have 1 to {} characters of a-z, 0-9, '-', '_' and '.', "
                    "and begin with "
                    "a letter or a digit",
                    kTenantNameBytesMax));
  }
  if (absl::Status status = CheckQuota(quota); !status.ok()) return status;
  if (directory_.FindTenant(name).has_value()) {
    return absl::AlreadyExistsError(fmt::format("tenant {} already exists", name));
  }
  if (directory_.tenant_count() >= kTenantsMax) {
    return absl::ResourceExhaustedError(
        fmt::format("there are already {} tenants, the most that a daemon supports", kTenantsMax));
  }
  Tenant tenant{.name = name, .suspended = false, .quota = quota, .created_at = WallNow()};
  if (absl::Status wrong = ApplyEncryption(tenant, encryption); !wrong.ok()) return wrong;
  const absl::Status status =
      writer_.Write([&, note = Note(caller, "tenant.create", name, DescribeLimits(tenant))](
                        ControlStore& store) { return store.CreateTenant(tenant, note); });
  if (absl::IsAborted(status) && directory_.FindTenant(name).has_value()) {
    return absl::AlreadyExistsError(fmt::format("tenant {} already exists", name));
  }
  if (!status.ok()) return status;
  Apply(tenant);
  return tenant;
}

absl::StatusOr<Tenant> TenantAdmin::Update(const Caller& caller, const Tenant& tenant,
                                           const char* action, const std::string& detail) {
  // Shared with the change, which may be written later.
  const auto written = std::make_shared<Tenant>(tenant);
  const absl::Status status =
      writer_.WriteRecord([written, note = Note(caller, action, tenant.name, detail)](
                              ControlStore& store) { return store.UpdateTenant(*written, note); });
  if (!status.ok()) return status;
  Tenant changed = *written;
  // The one that a deferred change will have.
  if (!store_->is_shared()) changed.revision = tenant.revision + 1;
  Apply(changed);
  ShareStoreState();
  return changed;
}

absl::StatusOr<Tenant> TenantAdmin::SetQuota(const Caller& caller, const std::string& name,
                                             const QuotaChange& change) {
  return Decide([&] { return TrySetQuota(caller, name, change); });
}

absl::StatusOr<Tenant> TenantAdmin::TrySetQuota(const Caller& caller, const std::string& name,
                                                const QuotaChange& change) {
  absl::StatusOr<Tenant> tenant = Find(name);
  if (!tenant.ok()) return tenant;
  Quota& quota = tenant->quota;
  for (const std::string& limit : change.clear) {
    if (absl::Status status = Lift(quota, limit); !status.ok()) return status;
  }
  if (change.set.memory_bytes) quota.memory_bytes = change.set.memory_bytes;
  if (change.set.jobs) quota.jobs = change.set.jobs;
  if (change.set.workers) quota.workers = change.set.workers;
  if (change.set.keys) quota.keys = change.set.keys;
  if (change.set.weight) quota.weight = change.set.weight;
  if (change.set.bandwidth_bytes) quota.bandwidth_bytes = change.set.bandwidth_bytes;
  if (absl::Status status = CheckQuota(quota); !status.ok()) return status;
  if (absl::Status wrong = ApplyEncryption(*tenant, change.encryption); !wrong.ok()) return wrong;
  return Update(caller, *tenant, "tenant.set-quota", DescribeLimits(*tenant));
}

absl::StatusOr<Tenant> TenantAdmin::SuspendTenant(const Caller& caller, const std::string& name,
                                                  bool suspended) {
  return Decide([&] { return TrySuspend(caller, name, suspended); });
}

absl::StatusOr<Tenant> TenantAdmin::TrySuspend(const Caller& caller, const std::string& name,
                                               bool suspended) {
  WriteLocal();
  absl::StatusOr<Tenant> tenant = Find(name);
  if (!tenant.ok()) return tenant;
  if (!suspended && local_.Has(LocalKind::kSuspend, name)) return NotInStoreYet(name);
  tenant->suspended = suspended;
  auto updated = Update(caller, *tenant, suspended ? "tenant.suspend" : "tenant.resume", "");
  if (updated.ok() || !suspended || !MayKeep()) return updated;
  return KeepSuspension(caller, *tenant, updated.status());
}

absl::Status TenantAdmin::DeleteTenant(const Caller& caller, const std::string& name) {
  return Decide([&] { return TryDelete(caller, name); });
}

absl::Status TenantAdmin::TryDelete(const Caller& caller, const std::string& name) {
  const absl::StatusOr<Tenant> tenant = Find(name);
  if (!tenant.ok()) return tenant.status();
  // Remove it from admission first, so that no job starts meanwhile. A shared store does that at
  // all daemons.
  const bool shared = store_->is_shared();
  if (absl::Status status = shared ? absl::OkStatus() : hooks_.remove_tenant(name); !status.ok())
    return status;
  const absl::Status status =
      writer_.Write([&, note = Note(caller, "tenant.delete", name, "")](ControlStore& store) {
        return store.DeleteTenant(*tenant, note);
      });
  if (!status.ok()) {
    if (const auto still = directory_.FindTenant(name); still && !shared) hooks_.set_tenant(*still);
    return status;
  }
  if (!shared) directory_.RemoveTenant(name);
  return absl::OkStatus();
}

absl::StatusOr<Token> TenantAdmin::Plan(const TokenRequest& request,
                                        std::optional<Token>& old) const {
  Token token;
  token.role = request.role;
  token.tenant = request.tenant;
  token.label = request.label;
  if (!IsLabel(request.label)) {
    return absl::InvalidArgumentError(
        fmt::format("a token's label must have at most {} printable characters", kLabelBytesMax));
  }
  if (request.lifetime < 0 || request.grace < 0) {
    return absl::InvalidArgumentError("a token's lifetime and grace must not be negative");
  }
  if (!request.replaces.empty()) {
    old = directory_.FindToken(request.replaces);
    if (!old.has_value()) {
      return absl::NotFoundError(fmt::format("there is no token {}", request.replaces));
    }
    if (old->revoked_at != 0) {
      return absl::FailedPreconditionError(
          fmt::format("token {} was revoked and cannot be replaced; issue a new token", old->id));
    }
    token.role = old->role;
    token.tenant = old->tenant;
    if (token.label.empty()) token.label = old->label;
  }
  const bool of_tenant = token.role == Role::kTenant;
  if (token.role == Role::kNone || of_tenant == token.tenant.empty()) {
    return absl::InvalidArgumentError(
        "a token must have either a tenant or one of the roles operator, admin and server");
  }
  if (of_tenant) {
    if (auto tenant = Find(token.tenant); !tenant.ok()) return tenant.status();
  }
  return token;
}

absl::StatusOr<IssuedToken> TenantAdmin::IssueToken(const Caller& caller,
                                                    const TokenRequest& request) {
  std::optional<Token> old;
  absl::StatusOr<Token> token = Plan(request, old);
  if (!token.ok()) return token.status();
  if (directory_.token_count() >= kTokensMax) {
    return absl::ResourceExhaustedError(
        fmt::format("there are already {} tokens, the most that a daemon supports", kTokensMax));
  }
  const TokenText text = DrawToken(random_);
  token->id = text.id;
  token->hash = KeyedHash(store_->hash_key(), text.secret);
  token->created_by = caller.name;
  token->created_at = WallNow();
  DurationNs lifetime = request.lifetime;
  // A token that is rotated lives as long as the one before, from now on.
  if (lifetime == 0 && old.has_value() && old->expires_at != 0) {
    lifetime = std::max<DurationNs>(1, old->expires_at - old->created_at);
  }
  if (lifetime > 0) token->expires_at = token->created_at + lifetime;
  std::string detail = token->tenant.empty() ? ToString(token->role) : "tenant " + token->tenant;
  detail += lifetime > 0 ? ", for " + ExactDuration(lifetime) : ", never expires";
  absl::Status status;
  if (old.has_value()) {
    const WallTimeNs end = token->created_at + request.grace;
    old->expires_at = old->expires_at == 0 ? end : std::min(old->expires_at, end);
    detail +=
        fmt::format("; replaces {}, which expires in {}", old->id, ExactDuration(request.grace));
    status = writer_.Write([&](ControlStore& store) {
      return store.RotateToken(*token, *old, Note(caller, "token.rotate", token->id, detail));
    });
  } else {
    status = writer_.Write([&](ControlStore& store) {
      return store.AddToken(*token, Note(caller, "token.issue", token->id, detail));
    });
  }
  if (!status.ok()) return status;
  Apply(*token);
  if (old.has_value()) Apply(*old);
  return IssuedToken{*std::move(token), text.ToString()};
}

absl::StatusOr<Token> TenantAdmin::RevokeToken(const Caller& caller, const std::string& id) {
  return Decide([&] { return TryRevoke(caller, id); });
}

absl::StatusOr<Token> TenantAdmin::TryRevoke(const Caller& caller, const std::string& id) {
  std::optional<Token> token = directory_.FindToken(id);
  if (!token.has_value()) return absl::NotFoundError(fmt::format("there is no token {}", id));
  if (token->revoked_at != 0) return *token;  // already revoked
  token->revoked_at = WallNow();
  const auto written = std::make_shared<Token>(*token);
  const absl::Status status =
      writer_.WriteRecord([written, note = Note(caller, "token.revoke", id, token->label)](
                              ControlStore& store) { return store.RevokeToken(*written, note); });
  if (!status.ok() && MayKeep()) return KeepRevocation(caller, *token, status);
  if (!status.ok()) return status;
  ++token->revision;  // also of a change that is written later
  Apply(*token);
  ShareStoreState();
  return *token;
}

}  // namespace phub::server
