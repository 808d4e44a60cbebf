#include "server/control/rpc/service.h"

#include "common/base/clock.h"
#include "common/base/status_text.h"

namespace phub::server {
namespace {

// Smaller answers are not charged: their calls cost more than they.
constexpr std::size_t kChargedBytesMin = 4096;

}  // namespace

void OpenCalls::Finish(std::uint64_t id, const absl::Status& status) {
  const auto found = reactors_.find(id);
  if (found == reactors_.end()) return;
  thread_.Defer(
      [reactor = found->second, status = ToGrpcStatus(status)] { reactor->Finish(status); });
  reactors_.erase(found);
}

void OpenCalls::Write(std::uint64_t id, const std::string& tenant,
                      std::function<std::size_t()> write) {
  const auto found = reactors_.find(id);
  if (found == reactors_.end()) return;
  thread_.Defer(
      [self = shared_from_this(), reactor = found->second, tenant, write = std::move(write)] {
        const std::size_t bytes = write();
        absl::Status status;
        if (bytes >= kChargedBytesMin) {
          auto charge = self->turns_.Charge(tenant, bytes);
          status = charge.status();
          if (charge.ok()) reactor->charge = *std::move(charge);
        }
        reactor->Finish(ToGrpcStatus(status));
      });
  reactors_.erase(found);
}

absl::StatusOr<RequestTurns::Token> Shared::Charge(const Caller& caller,
                                                   std::uint64_t bytes) const {
  if (caller.open || caller.role != Role::kTenant) return RequestTurns::Token();
  return calls->turns().Charge(caller.tenant, bytes);
}

RequestTurns::Token Shared::ChargeCall(Admission& admission) const {
  if (!admission.status.ok()) return {};
  auto charge = Charge(admission.caller, kOpenCallBytes);
  if (charge.ok()) return *std::move(charge);
  admission.Add({charge.status(), ControlCounter::requests_refused_quota});
  return {};
}

void Shared::NoteRefusal(Control& control, const Admission& admission) {
  control.counters().Add(admission.refused);
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
  if (!posted) control.counters().Add(ControlCounter::audit_suppressed);
}

}  // namespace phub::server
