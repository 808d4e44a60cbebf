#include "server/control/service.h"

#include <algorithm>

#include "common/base/clock.h"
#include "common/base/status_text.h"

namespace phub::server {
namespace {

// Refused attempts that are written down: a flood of them is to fill no disk.
constexpr int kAuditedRefusalsMax = 30;
constexpr DurationNs kAuditedRefusalEvery = kSecond;

}  // namespace

void Shared::NoteRefusal(Control& control, const Admission& admission) {
  control.Count(admission.refused);
  const bool known = admission.caller.open || admission.caller.role != Role::kNone;
  if (admin == nullptr || admission.rule == nullptr || !admission.rule->audited || !known) return;
  const TimeNs now = SystemClock().Now();
  const auto earned =
      std::min<std::int64_t>((now - audit_budget_at) / kAuditedRefusalEvery, kAuditedRefusalsMax);
  if (earned > 0) {
    audit_budget = std::min(audit_budget + static_cast<int>(earned), kAuditedRefusalsMax);
    audit_budget_at = now;
  }
  const bool posted = audit_budget > 0 && state_thread->Post([this, caller = admission.caller,
                                                              method = std::string(
                                                                  admission.rule->method),
                                                              why = std::string(
                                                                  MessageOf(admission.status))] {
    // What cannot be written now is at least counted (below, the next time).
    static_cast<void>(admin->Audit({caller.name, caller.peer, method, "", "", "refused: " + why}));
  });
  if (posted) {
    --audit_budget;
  } else {
    control.Count(ControlCounter::audit_suppressed);
  }
}

}  // namespace phub::server
