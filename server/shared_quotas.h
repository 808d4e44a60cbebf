// Connects admission, which is under control's lock, with the control store.
#pragma once

#include "absl/status/status.h"
#include "server/control/ports/control_thread.h"
#include "server/tenant/control_store.h"
#include "server/tenant/tenant_admin.h"

namespace phub::server {

// Changes of tenants reach admission. `thread` must outlive the hooks.
AdmissionHooks HooksOf(ControlThread& thread);
void RemoveDefaultTenant(ControlThread& thread);
// If daemons share the store, quotas apply to their sum from now on. ALREADY_EXISTS names another
// daemon with this one's id.
absl::Status ShareQuotas(ControlStore& store, ControlThread& thread);

}  // namespace phub::server
