#include "server/shared_quotas.h"

#include <functional>
#include <string>

#include "common/base/check.h"
#include "server/control/admin/tenants.h"

namespace phub::server {

AdmissionHooks HooksOf(ControlThread& thread) {
  AdmissionHooks hooks;
  hooks.set_tenant = [&thread](const Tenant& tenant) {
    thread.Run([&](Control& control) { control.tenants().SetTenant(tenant); });
  };
  hooks.remove_tenant = [&thread](const std::string& name) {
    return thread.Run([&](Control& control) { return control.tenants().RemoveTenant(name); });
  };
  hooks.set_store_state = [&thread](const StoreState& state) {
    thread.Run([&](Control& control) {
      control.tenants().SetStateDisk({state.fault, state.deferred, state.shared});
    });
  };
  return hooks;
}

void RemoveDefaultTenant(ControlThread& thread) {
  const absl::Status removed = thread.Run(
      [](Control& under_lock) { return under_lock.tenants().RemoveTenant(kDefaultTenant); });
  PHUB_CHECK(removed.ok());
}

absl::Status ShareQuotas(ControlStore& store, ControlThread& thread) {
  Grants* const grants = store.grants();
  if (grants == nullptr) return absl::OkStatus();
  const absl::Status started =
      grants->Start([&thread](const std::function<void(Ledger&)>& function) {
        thread.Run([&](Control& control) { function(control.tenants().ledger()); });
      });
  if (!started.ok()) return started;
  thread.Run([&](Control& control) { control.tenants().SetGrants(*grants); });
  return absl::OkStatus();
}

}  // namespace phub::server
