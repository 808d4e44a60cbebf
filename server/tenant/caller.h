// Who calls, as far as the daemon could find out. Plain data.
#pragma once

#include <string>

#include "server/tenant/tenant.h"

namespace phub::server {

struct Caller {
  Role role = Role::kNone;
  std::string tenant;  // of kTenant
  std::string name;    // for the audit log and messages: "token 3f... of tenant acme"
  std::string peer;    // address
  // The daemon has no identities (no state_dir): everybody may do everything, as `role` says not.
  bool open = false;
};

}  // namespace phub::server
