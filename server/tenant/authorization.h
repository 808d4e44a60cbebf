// Which roles may call which method: one table, generated from the list of RPCs
// (common/rpc/rpcs.h). Access is denied by default: a method without a row is refused to every
// caller. A test fails for every method of the .proto files without a row.
//
// The table decides by role only. server/control/rpc/access.h checks that a tenant's calls concern
// only that tenant's jobs, because the job is known there. The standard health service answers
// every caller; reflection is available only if the daemon has no identities. Constant; any thread.
#pragma once

#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "server/tenant/caller.h"

namespace phub::server {

struct MethodRule {
  std::string_view method;  // "phub.v1.Session/Join"
  unsigned roles = 0;       // bits, RoleBit(role)
  bool audited = false;     // an administrative change; the audit log has even refused calls

  static constexpr unsigned RoleBit(Role role) { return 1u << static_cast<unsigned>(role); }
  bool Allows(Role role) const { return (roles & RoleBit(role)) != 0; }
};

std::span<const MethodRule> MethodRules();
// Null if the method has no row.
const MethodRule* FindMethodRule(std::string_view method);

// PERMISSION_DENIED names the allowed roles. UNAUTHENTICATED: the caller has no identity.
absl::Status Authorize(const Caller& caller, std::string_view method);

}  // namespace phub::server
