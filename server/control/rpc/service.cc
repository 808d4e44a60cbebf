#include "server/control/rpc/service.h"

#include "common/base/clock.h"
#include "common/base/status_text.h"

namespace phub::server {
void Shared::NoteRefusal(Control& control, const Admission& admission) {
  control.Count(admission.refused);
  const bool known = admission.caller.open || admission.caller.role != Role::kNone;
  if (admin == nullptr || admission.rule == nullptr || !admission.rule->audited || !known) return;
  const bool posted = admin->MayRecord(admission.caller, SystemClock().Now()) &&
                      state_thread->Post([this, caller = admission.caller,
                                          method = std::string(admission.rule->method),
                                          why = std::string(MessageOf(admission.status))] {
                        // Only the entry of an administrator can fail here, and only after
                        // thousands were deferred.
                        static_cast<void>(admin->Audit(
                            caller, {caller.name, caller.peer, method, "", "", "refused: " + why}));
                      });
  if (!posted) control.Count(ControlCounter::audit_suppressed);
}

}  // namespace phub::server
