// Sends messages to the daemons of other racks, and fails jobs whose messages were lost.
#include "server/control/racks/rack_messages.h"

#include <utility>

#include "common/base/log.h"
#include "common/base/printable.h"
#include "server/control/jobs/ending.h"
#include "server/control/on_control.h"
#include "server/control/racks/rack_opening.h"
#include "server/control/racks/rack_run.h"

namespace phub::server {
namespace {

// For messages that do not belong to a job of this daemon.
std::string TenantOf(const v1::PeerMessage& message) {
  if (message.has_request()) return message.request().tenant();
  return message.has_refused() ? message.refused().tenant() : "";
}

}  // namespace

// The jobs fail when Control is polled next, since the current caller may be in the middle of an
// operation.
void RackMessages::NoteDropped(RackIndex to, const DroppedMessages& dropped) {
  context_.counters.Add(ControlCounter::peer_messages_dropped, dropped.count);
  LogWarning("event=peer_messages_dropped rack={} count={} all={}", to.value, dropped.count,
             dropped.all);
  if (dropped.all) {
    known_.NoteMissedMessages(to);
    held_.NoteRequestsLost();
  }
  for (const auto& [whose, count] : dropped.senders) {
    Job* const job = jobs_.FindIncarnation(whose.incarnation);
    if (job != nullptr && job->running() && job->rack_run != nullptr) {
      job->rack_run->protocol.On(RunEvent::kMessagesDropped);
      job->rack_run->crowded_out = fmt::format(
          "the daemon of {} accepted no messages for too long and the queue for it is full: {} "
          "messages of this job were dropped, since it or its tenant has the most there; its ranks "
          "probably make many calls without waiting for answers",
          context_.options.DescribeRack(to), count);
      continue;
    }
    // These were requests to open jobs. The next rank that joins sends the request again.
    held_.NoteRequestLost(whose.tenant, whose.incarnation.value);
  }
}

void RackMessages::SendToRack(RackIndex to, Incarnation incarnation, v1::PeerMessage message) {
  PHUB_ON_CONTROL();
  message.set_incarnation(incarnation.value);
  SendShared(to, std::move(message));
}

void RackMessages::SendShared(RackIndex to, const SharedPeerMessage& shared) {
  PHUB_ON_CONTROL();
  if (network_ == nullptr) return;
  const v1::PeerMessage& message = *shared.message;
  const Incarnation incarnation{message.incarnation()};
  Job* const job = jobs_.FindIncarnation(incarnation);
  const bool spans = job != nullptr && job->rack_run != nullptr;
  if (shared.bytes > kPeerMessageBytesMax) {
    // The receiver would never accept it, and it would block all later messages.
    context_.counters.Add(ControlCounter::peer_messages_dropped);
    if (spans) {
      job->rack_run->protocol.On(RunEvent::kMessagesDropped);
      job->rack_run->crowded_out =
          fmt::format("a message of {} bytes to {} exceeds the limit of {} bytes", shared.bytes,
                      context_.options.DescribeRack(to), kPeerMessageBytesMax);
    }
    return;
  }
  if (spans && job->rack_run->protocol.crowded_out() && !message.has_failed()) return;
  const PeerSender sender{spans ? job->account.tenant : TenantOf(message), incarnation};
  const DroppedMessages dropped = network_->Send(to, sender, shared);
  if (dropped.count > 0) NoteDropped(to, dropped);
}

void RackMessages::SendToRacks(const Job& job, v1::PeerMessage message) {
  PHUB_ON_CONTROL();
  message.set_incarnation(job.account.incarnation.value);
  ShareWithRacks(job, std::move(message));
}

void RackMessages::ShareWithRacks(const Job& job, const SharedPeerMessage& message) {
  PHUB_ON_CONTROL();
  for (std::uint32_t rack = 0; rack < known_.size(); ++rack) {
    if (rack == context_.options.rack_index || !job.rack_run->TakesPart(RackIndex{rack})) continue;
    SendShared(RackIndex{rack}, message);
  }
}

// All jobs in which that rack takes part fail, since nobody knows any more whose messages were
// lost.
void RackMessages::FailOverLostMessages(RackIndex rack, const char* what) {
  for (const auto& job : jobs_.jobs()) {
    if (!job->running() || job->rack_run == nullptr || !job->rack_run->TakesPart(rack)) continue;
    ending_.Fail(*job, ending_.MakeFault(*job, "rack_messages_lost",
                                         fmt::format("the daemon of {} {}",
                                                     context_.options.DescribeRack(rack), what)));
  }
}

void RackMessages::RefuseRequest(RackIndex from, const v1::PeerMessage& message,
                                 const absl::Status& status) {
  PHUB_ON_CONTROL();
  const Incarnation incarnation{message.incarnation()};
  v1::PeerMessage answer;
  v1::PeerRefused& refused = *answer.mutable_refused();
  refused.set_tenant(message.request().tenant());
  refused.set_job(message.request().job());
  refused.set_code(static_cast<int>(status.code()));
  refused.set_message(std::string(status.message()));
  if (from.value == 0) return opening_.RefuseHeld(refused, incarnation);
  SendToRack(from, incarnation, std::move(answer));
}

void RackMessages::CheckQueues() {
  for (const auto& job : jobs_.jobs()) {
    if (!job->running() || job->rack_run == nullptr) continue;
    if (!Has(job->rack_run->protocol.On(RunEvent::kQueuesChecked), RackAction::kFail)) continue;
    context_.counters.Add(ControlCounter::jobs_crowded_out);
    ending_.Fail(*job, ending_.MakeFault(*job, "rack_messages_lost", job->rack_run->crowded_out));
  }
  for (std::uint32_t rack = 0; rack < known_.size(); ++rack) {
    if (!known_.TakeMissedMessages(RackIndex{rack})) continue;
    FailOverLostMessages(RackIndex{rack}, "accepted no messages for too long");
  }
}

absl::StatusOr<std::optional<RackIndex>> RackMessages::RackToAsk(
    const v1::RackChoice& choice) const {
  PHUB_ON_CONTROL();
  const ControlOptions& options = context_.options;
  if (options.racks.empty()) {
    return absl::FailedPreconditionError(fmt::format(
        "the request names rack {}, but this daemon has no other racks: its `racks` is empty",
        choice.rack()));
  }
  if (choice.rack() >= options.racks_with_ranks()) {
    return absl::InvalidArgumentError(
        fmt::format("there is no rack {}; there are {}, numbered from 0", choice.rack(),
                    options.racks_with_ranks()));
  }
  if (choice.rack() == options.rack_index) return std::nullopt;
  if (choice.passed_on()) {
    return absl::FailedPreconditionError(fmt::format(
        "{} received a request meant for rack {}; check `racks` and `rack_self` of both",
        context_.options.DescribeRack(RackIndex{options.rack_index}), choice.rack()));
  }
  return RackIndex{choice.rack()};
}

}  // namespace phub::server
