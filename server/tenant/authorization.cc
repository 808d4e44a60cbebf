#include "server/tenant/authorization.h"

#include <fmt/format.h>

#include <array>
#include <string>

namespace phub::server {
namespace {

constexpr unsigned kTenant = MethodRule::RoleBit(Role::kTenant);
constexpr unsigned kOperator = MethodRule::RoleBit(Role::kOperator);
constexpr unsigned kAdmin = MethodRule::RoleBit(Role::kAdmin);
constexpr unsigned kServer = MethodRule::RoleBit(Role::kServer);
constexpr unsigned kOperators = kOperator | kAdmin;
constexpr unsigned kReaders = kTenant | kOperators;
constexpr unsigned kEveryone = kReaders | kServer;
constexpr bool kAudited = true;

constexpr auto kRules = std::to_array<MethodRule>({
    // Training is a tenant's own business.
    {"phub.v1.Session/GetRack", kEveryone},
    {"phub.v1.Session/Join", kTenant},
    {"phub.v1.Session/Commit", kTenant},
    {"phub.v1.Session/AddKeys", kTenant},
    {"phub.v1.Session/OpenLanes", kTenant},
    {"phub.v1.Session/Barrier", kTenant},
    {"phub.v1.Session/Attend", kTenant},
    {"phub.v1.Session/Leave", kTenant},
    {"phub.v1.Session/GetVersions", kTenant},
    {"phub.v1.Session/LoadState", kTenant | kServer},  // of jobs that span racks, passed on
    {"phub.v1.Session/GetLoadedState", kTenant},

    // Daemons of other racks.
    {"phub.v1.Peer/Exchange", kServer},
    // They take bandwidth from jobs, for a while.
    {"phub.v1.Probe/GetRacks", kOperators | kServer},
    {"phub.v1.Probe/ApplyTopology", kOperators | kServer, kAudited},
    {"phub.v1.Probe/ProbePair", kOperators},
    {"phub.v1.Probe/RelayProbe", kServer},
    {"phub.v1.Probe/GrantProbe", kServer},

    {"phub.v1.Admin/GetServer", kEveryone},
    {"phub.v1.Admin/ListJobs", kReaders},
    {"phub.v1.Admin/GetJob", kReaders},
    {"phub.v1.Admin/ListStalls", kReaders},
    {"phub.v1.Admin/GetStats", kReaders},
    {"phub.v1.Admin/DrainServer", kOperators, kAudited},
    {"phub.v1.Admin/UndrainServer", kOperators, kAudited},
    {"phub.v1.Admin/EvictJob", kReaders, kAudited},
    // These give parameters away: operators see that a job is there, not what it has learned. Other
    // racks' daemons pass on what their callers ask of jobs that span racks.
    {"phub.v1.Admin/GetJobVersions", kTenant | kAdmin | kServer},
    {"phub.v1.Admin/BeginSnapshot", kTenant | kAdmin | kServer},
    {"phub.v1.Admin/ReadSnapshot", kTenant | kAdmin | kServer},
    {"phub.v1.Admin/ReportSavedState", kTenant | kAdmin | kServer, kAudited},

    {"phub.v1.Tenants/WhoAmI", kEveryone},
    {"phub.v1.Tenants/ListTenants", kReaders},
    {"phub.v1.Tenants/GetTenant", kReaders},
    {"phub.v1.Tenants/ListTokens", kTenant | kAdmin},
    {"phub.v1.Tenants/ListAudit", kOperators},
    {"phub.v1.Tenants/CreateTenant", kAdmin, kAudited},
    {"phub.v1.Tenants/SetQuota", kAdmin, kAudited},
    {"phub.v1.Tenants/SuspendTenant", kAdmin, kAudited},
    {"phub.v1.Tenants/DeleteTenant", kAdmin, kAudited},
    {"phub.v1.Tenants/IssueToken", kAdmin, kAudited},
    {"phub.v1.Tenants/RevokeToken", kAdmin, kAudited},
});

std::string RolesText(unsigned roles) {
  std::string text;
  for (int i = 1; i < kRoleCount; ++i) {
    const auto role = static_cast<Role>(i);
    if ((roles & MethodRule::RoleBit(role)) == 0) continue;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", ToString(role));
  }
  return text;
}

}  // namespace

std::span<const MethodRule> MethodRules() { return kRules; }

const MethodRule* FindMethodRule(std::string_view method) {
  for (const MethodRule& rule : kRules) {
    if (rule.method == method) return &rule;
  }
  return nullptr;
}

absl::Status Authorize(const Caller& caller, std::string_view method) {
  const MethodRule* const rule = FindMethodRule(method);
  if (rule == nullptr) {
    return absl::PermissionDeniedError(fmt::format("{} is not allowed to anybody", method));
  }
  if (caller.open || rule->Allows(caller.role)) return absl::OkStatus();
  if (caller.role == Role::kNone) {
    return absl::UnauthenticatedError(
        "this daemon has identities, and the call brings none; give a token (--token-file, "
        "PHUB_TOKEN_FILE) or a certificate (--certificate and --key, PHUB_CERTIFICATE and "
        "PHUB_KEY)");
  }
  return absl::PermissionDeniedError(fmt::format("{} has the role {}; {} is for: {}", caller.name,
                                                 ToString(caller.role), method,
                                                 RolesText(rule->roles)));
}

}  // namespace phub::server
