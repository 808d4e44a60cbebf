#include "server/control/jobs/pending_calls.h"

#include <algorithm>
#include <iterator>
#include <list>

#include "common/base/log.h"
#include "server/control/on_control.h"

namespace phub::server {

void PendingCalls::AnswerAcknowledged(Job& job) {
  PHUB_ON_CONTROL();
  if (job.unannounced) return;  // they get the job's fault
  std::list<PendingCall> ready;
  std::list<PendingCall> refused;
  for (auto call = job.pending.begin(); call != job.pending.end();) {
    const auto next = std::next(call);
    const PrefaultState pages =
        call->pages == nullptr ? PrefaultState::kTaken : call->pages->load();
    const bool there = !call->awaits_racks || peer_racks_.HaveKeys(job, call->batches);
    const bool done =
        std::ranges::all_of(call->done, [](const DoneFlag& each) { return each->load(); });
    if (pages == PrefaultState::kRefused) {
      refused.splice(refused.end(), job.pending, call);
    } else if (there && done && pages == PrefaultState::kTaken &&
               context_.cores.Acknowledged(call->tickets) && KeysAcknowledged(job, call->batches) &&
               HasGroupBatch(job, *call)) {
      ready.splice(ready.end(), job.pending, call);
    }
    call = next;
  }
  for (PendingCall& call : ready) call.succeed();
  for (PendingCall& call : refused) {
    call.fail(context_.Refuse(
        ControlCounter::keys_refused_region,
        absl::ResourceExhaustedError(
            fmt::format("job {}: phubd could not allocate memory for the gradients of this rank; "
                        "free memory on its host, or lower memory_max",
                        job.name()))));
  }
  // End the job only when no call is pending: the end would refuse pending calls.
  const auto has_left = [](const Member& each) { return each.state == Member::State::kLeft; };
  if (!ready.empty() && job.pending.empty() && job.running() && !job.diagnosis &&
      std::all_of(job.members.begin(), job.members.end(), has_left)) {
    if (job.rack_run == nullptr) return ending_.EndInOrder(job);
    peer_racks_.EndIfAllLeft(job);
  }
}

bool PendingCalls::HasGroupBatch(const Job& job, const PendingCall& call) const {
  if (call.in_racks != nullptr &&
      !group_racks_.HaveBatches(job, *call.in_racks, call.group_batches))
    return false;
  return call.of_group == nullptr ||
         (!call.of_group->tickets.empty() && context_.cores.Acknowledged(call.of_group->tickets));
}

bool PendingCalls::KeysAcknowledged(const Job& job, std::size_t batches) const {
  PHUB_ON_CONTROL();
  if (job.removal != nullptr && job.removal->state != RemovalRun::State::kGathering) return false;
  return batches == 0 || (batches <= job.batches_handed_out &&
                          context_.cores.Acknowledged(job.batches[batches - 1].tickets));
}

}  // namespace phub::server
