// What is said to the daemons of other racks, and what becomes of jobs if they do not take it.
#include "common/base/log.h"
#include "server/control/racks/rack_run.h"
#include "server/control/racks/rack_survey.h"
#include "server/control/state.h"

namespace phub::server {
namespace {

// Of messages that are of no job that is here.
std::string TenantOf(const v1::PeerMessage& message) {
  if (message.has_request()) return message.request().tenant();
  return message.has_refused() ? message.refused().tenant() : "";
}

// Jobs end by it when Control is polled next: whoever speaks now is in the middle of something.
void NoteDropped(Control::State& state, RackIndex to, const DroppedMessages& dropped) {
  state.counters.Add(ControlCounter::peer_messages_dropped, dropped.count);
  LogWarning("event=peer_messages_dropped rack={} count={} all={}", to.value, dropped.count,
             dropped.all);
  if (dropped.all) {
    state.racks.known[to.value].missed_messages = true;
    for (HeldJoin& held : state.racks.held) held.asked_instance.reset();
  }
  for (const auto& [whose, count] : dropped.senders) {
    Job* const job = state.FindIncarnation(whose.incarnation);
    if (job != nullptr && job->running() && job->rack_run != nullptr) {
      job->rack_run->crowded_out = fmt::format(
          "the daemon of {} did not take messages for too long, and of those that wait for it too "
          "many are this job's: {} were dropped; does a rank ask for much without waiting for "
          "answers?",
          state.DescribeRackBriefly(to), count);
      continue;
    }
    // Requests for jobs: who comes next asks again.
    for (HeldJoin& held : state.racks.held) {
      const bool is = held.request.incarnation() == whose.incarnation.value &&
                      held.request.tenant() == whose.tenant;
      if (is) held.asked_instance.reset();
    }
  }
}

}  // namespace

void Control::State::SendToRack(RackIndex to, Incarnation incarnation, v1::PeerMessage message) {
  message.set_incarnation(incarnation.value);
  if (racks.network == nullptr) return;
  Job* const job = FindIncarnation(incarnation);
  const bool spans = job != nullptr && job->rack_run != nullptr;
  if (message.ByteSizeLong() > kPeerMessageBytesMax) {
    // It would never be taken, nor anything that comes after it.
    counters.Add(ControlCounter::peer_messages_dropped);
    if (spans) {
      job->rack_run->crowded_out =
          fmt::format("a message of {} bytes has to go to {}, and at most {} can",
                      message.ByteSizeLong(), DescribeRackBriefly(to), kPeerMessageBytesMax);
    }
    return;
  }
  if (spans && !job->rack_run->crowded_out.empty() && !message.has_failed()) return;
  const PeerSender sender{spans ? job->account.tenant : TenantOf(message), incarnation};
  const DroppedMessages dropped = racks.network->Send(to, sender, std::move(message));
  if (dropped.count > 0) NoteDropped(*this, to, dropped);
}

void Control::State::SendToRacks(Incarnation incarnation, const v1::PeerMessage& message) {
  for (std::uint32_t rack = 0; rack < racks.known.size(); ++rack) {
    if (rack != options.rack_index) SendToRack(RackIndex{rack}, incarnation, message);
  }
}

// No job that spans racks goes on without what was lost: which jobs' it was, nobody knows any more.
void Control::State::FailOverLostMessages(RackIndex rack, const char* what) {
  for (const auto& job : jobs) {
    if (!job->running() || job->rack_run == nullptr) continue;
    Fail(*job, MakeFault(*job, "rack_messages_lost",
                         fmt::format("the daemon of {} {}", DescribeRackBriefly(rack), what)));
  }
}

void RefuseRequest(Control::State& state, RackIndex from, const v1::PeerMessage& message,
                   const absl::Status& status) {
  const Incarnation incarnation{message.incarnation()};
  v1::PeerMessage answer;
  v1::PeerRefused& refused = *answer.mutable_refused();
  refused.set_tenant(message.request().tenant());
  refused.set_job(message.request().job());
  refused.set_code(static_cast<int>(status.code()));
  refused.set_message(std::string(status.message()));
  if (from.value == 0) return state.RefuseHeld(refused, incarnation);
  state.SendToRack(from, incarnation, std::move(answer));
}

void CheckQueues(Control::State& state) {
  for (const auto& job : state.jobs) {
    if (!job->running() || job->rack_run == nullptr || job->rack_run->crowded_out.empty()) continue;
    state.counters.Add(ControlCounter::jobs_crowded_out);
    state.Fail(*job, state.MakeFault(*job, "rack_messages_lost", job->rack_run->crowded_out));
  }
  for (std::uint32_t rack = 0; rack < state.racks.known.size(); ++rack) {
    if (!std::exchange(state.racks.known[rack].missed_messages, false)) continue;
    state.FailOverLostMessages(RackIndex{rack}, "did not take messages for too long");
  }
}

std::string DescribeTrouble(const KnownRack& rack) {
  if (!rack.refuses.empty()) {
    return fmt::format(": it takes nothing that this daemon says, as {}", rack.refuses);
  }
  if (!rack.is_refused.empty()) {
    return fmt::format(": what it says is not taken here, as {}", rack.is_refused);
  }
  return "";
}

}  // namespace phub::server
