// The identity of a caller, as far as the daemon could verify it. Plain data.
#pragma once

#include <string>

#include "server/tenant/tenant.h"

namespace phub::server {

struct Caller {
  Role role = Role::kNone;
  std::string tenant;  // only for kTenant
  std::string name;    // for the audit log and messages: "token 3f... of tenant acme"
  std::string peer;    // address
  // The daemon has no identities (no state_dir): every caller may make every call, whatever its
  // role.
  bool open = false;
};

}  // namespace phub::server
