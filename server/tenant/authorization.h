// Who may call what: one table, deny by default, made of the list of RPCs (common/rpc/rpcs.h). A
// call without a row is refused to everybody, and a test fails for every method of the .proto files
// without one.
//
// The table decides by role alone. That a tenant's calls concern that tenant's jobs only is decided
// where the job is known (server/control/rpc/access.h). The standard health service answers
// anybody; reflection is there only if the daemon has no identities. Constant; any thread.
#pragma once

#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "server/tenant/caller.h"

namespace phub::server {

struct MethodRule {
  std::string_view method;  // "phub.v1.Session/Join"
  unsigned roles = 0;       // bits, RoleBit(role)
  bool audited = false;     // an administrative change: it is in the audit log, refused or not

  static constexpr unsigned RoleBit(Role role) { return 1u << static_cast<unsigned>(role); }
  bool Allows(Role role) const { return (roles & RoleBit(role)) != 0; }
};

std::span<const MethodRule> MethodRules();
// Null: there is no row.
const MethodRule* FindMethodRule(std::string_view method);

// PERMISSION_DENIED says which roles may; UNAUTHENTICATED if the caller is nobody.
absl::Status Authorize(const Caller& caller, std::string_view method);

}  // namespace phub::server
