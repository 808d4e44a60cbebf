#include "server/control/rpc/service.h"

#include <algorithm>

#include "common/base/clock.h"
#include "common/base/status_text.h"

namespace phub::server {
namespace {

constexpr int kAuditedAtOnceMax = 30;
constexpr DurationNs kAuditedEvery = kSecond;

}  // namespace

bool AuditBudget::Take(TimeNs now) {
  const auto earned = std::min<std::int64_t>((now - at) / kAuditedEvery, kAuditedAtOnceMax);
  if (earned > 0) {
    left = std::min(left + static_cast<int>(earned), kAuditedAtOnceMax);
    at = now;
  }
  if (left == 0) return false;
  --left;
  return true;
}

void Shared::NoteRefusal(Control& control, const Admission& admission) {
  control.Count(admission.refused);
  const bool known = admission.caller.open || admission.caller.role != Role::kNone;
  if (admin == nullptr || admission.rule == nullptr || !admission.rule->audited || !known) return;
  const bool posted = audited_refusals.Take(SystemClock().Now()) &&
                      state_thread->Post([this, caller = admission.caller,
                                          method = std::string(admission.rule->method),
                                          why = std::string(MessageOf(admission.status))] {
                        // If the entry cannot be written, it is at least counted (below, next
                        // time).
                        static_cast<void>(admin->Audit(
                            {caller.name, caller.peer, method, "", "", "refused: " + why}));
                      });
  if (!posted) control.Count(ControlCounter::audit_suppressed);
}

}  // namespace phub::server
