#include "server/tenant/authorization.h"

#include <fmt/format.h>

#include <array>
#include <string>

#include "common/rpc/rpcs.h"

namespace phub::server {
namespace {

static_assert(rpc::kTenant == MethodRule::RoleBit(Role::kTenant));
static_assert(rpc::kOperator == MethodRule::RoleBit(Role::kOperator));
static_assert(rpc::kAdmin == MethodRule::RoleBit(Role::kAdmin));
static_assert(rpc::kServer == MethodRule::RoleBit(Role::kServer));

template <typename... Rpcs>
constexpr auto RulesOf(rpc::List<Rpcs...>) {
  return std::to_array<MethodRule>({{Rpcs::kMethod, Rpcs::kCallers, Rpcs::kAudited}...});
}
constexpr auto kRules = RulesOf(rpc::All());

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
    return absl::PermissionDeniedError(fmt::format("no role may call {}", method));
  }
  if (caller.open || rule->Allows(caller.role)) return absl::OkStatus();
  if (caller.role == Role::kNone) {
    return absl::UnauthenticatedError(
        "this daemon requires an identity, but the call has none; pass a token (--token-file, "
        "PHUB_TOKEN_FILE) or a certificate (--certificate and --key, PHUB_CERTIFICATE and "
        "PHUB_KEY)");
  }
  return absl::PermissionDeniedError(fmt::format("{} has the role {}; {} requires one of: {}",
                                                 caller.name, ToString(caller.role), method,
                                                 RolesText(rule->roles)));
}

}  // namespace phub::server
