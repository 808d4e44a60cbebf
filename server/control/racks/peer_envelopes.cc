// Handles envelopes and messages from the daemons of other racks.
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/printable.h"
#include "server/control/checkpoint/deal.h"
#include "server/control/checkpoint/loads.h"
#include "server/control/jobs/ending.h"
#include "server/control/jobs/pending_calls.h"
#include "server/control/on_control.h"
#include "server/control/racks/peer_lanes.h"
#include "server/control/racks/rack_arrivals.h"
#include "server/control/racks/rack_conflicts.h"
#include "server/control/racks/rack_groups.h"
#include "server/control/racks/rack_jobs.h"
#include "server/control/racks/rack_late_rounds.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/racks/rack_opening.h"
#include "server/control/racks/rack_run.h"
#include "server/control/racks/rack_waiting.h"
#include "server/control/racks/topology_survey.h"
#include "server/control/ranks/barriers.h"
#include "server/control/shared_settings.h"

namespace phub::server {

v1::PeerEnvelope RackMessages::MakeEnvelope(RackIndex to) const {
  PHUB_ON_CONTROL();
  v1::PeerEnvelope envelope;
  envelope.set_protocol_version(kProtocolVersionMax);
  envelope.set_configuration(known_.configuration());
  envelope.set_rack(context_.options.rack_index);
  envelope.set_to_rack(to.value);
  envelope.set_instance(known_.instance());
  envelope.set_daemon(context_.options.rack_self);
  envelope.set_daemon_count(context_.options.daemons_in_rack());
  envelope.set_endpoint(context_.options.racks[context_.options.rack_index]);
  if (!known_.Agrees(to)) {
    Write(SettingsOfRacks(context_.options, context_.cores.size()), *envelope.mutable_settings());
  }
  return envelope;
}

absl::Status RackMessages::CheckEnvelope(const v1::PeerEnvelope& envelope) {
  PHUB_ON_CONTROL();
  const auto refuse = [&](ControlCounter counter, const std::string& what) {
    context_.counters.Add(counter);
    if (known_.NoteRefused(envelope.rack(), what)) {
      LogWarning("event=peer_refused message=\"{}\"", what);
    }
    return absl::FailedPreconditionError(what);
  };
  if (known_.empty()) {
    return refuse(
        ControlCounter::peers_refused_place,
        "another daemon expects this one to be one of its racks, but `racks` is not set here");
  }
  if (envelope.protocol_version() < kProtocolVersionMin ||
      envelope.protocol_version() > kProtocolVersionMax) {
    return refuse(ControlCounter::peers_refused_version,
                  fmt::format("rack {} uses control protocol {}, this daemon supports {} to {}; "
                              "upgrade the older of the two",
                              envelope.rack(), envelope.protocol_version(), kProtocolVersionMin,
                              kProtocolVersionMax));
  }
  if (envelope.rack() >= known_.size() || envelope.rack() == context_.options.rack_index ||
      envelope.to_rack() != context_.options.rack_index) {
    return refuse(ControlCounter::peers_refused_place,
                  fmt::format("the daemon of rack {} expects this one to be rack {}, but it is "
                              "rack {} of {}; check `racks` and `rack_self` of both",
                              envelope.rack(), envelope.to_rack(), context_.options.rack_index,
                              known_.size()));
  }
  if (envelope.daemon_count() == 0) {
    return refuse(ControlCounter::peers_refused_version,
                  fmt::format("the phubd of rack {} ({}) is older than this one and does not send "
                              "its position in the rack; upgrade it",
                              envelope.rack(), context_.options.racks[envelope.rack()]));
  }
  if (envelope.daemon() != context_.options.rack_self ||
      envelope.daemon_count() != context_.options.daemons_in_rack()) {
    return refuse(
        ControlCounter::peers_refused_place,
        fmt::format("rack {}'s daemon {} of {} ({}) expects this one to be its counterpart, but it "
                    "is rack {}'s daemon {} of {} ({}): every rack must have the same number of "
                    "`daemons`, and `racks` must list the daemons at the same position in each",
                    envelope.rack(), envelope.daemon(), envelope.daemon_count(),
                    Printable(envelope.endpoint(), kNameBytesMax), context_.options.rack_index,
                    context_.options.rack_self, context_.options.daemons_in_rack(),
                    context_.options.racks[context_.options.rack_index]));
  }
  if (envelope.configuration() != known_.configuration()) {
    Configuration first{fmt::format("rack {}", context_.options.rack_index), known_.configuration(),
                        SettingsOfRacks(context_.options, context_.cores.size())};
    Configuration second{fmt::format("rack {}", envelope.rack()), envelope.configuration(),
                         ReadSettings(envelope.settings())};
    if (envelope.rack() < context_.options.rack_index) std::swap(first, second);
    return refuse(
        ControlCounter::peers_refused_configuration,
        fmt::format("{}; both daemons must have the same `racks`, topology, chunk_bytes, "
                    "staging_bytes_per_lane, number of core loops and versions: compare phubd "
                    "--dump-config of both",
                    DescribeDifference(first, second)));
  }
  return absl::OkStatus();
}

void RackMessages::OnEnvelope(const v1::PeerEnvelope& envelope, Answer<v1::PeerReceipt> answer) {
  OnOwnedEnvelope(std::make_shared<const v1::PeerEnvelope>(envelope), std::move(answer));
}

void RackMessages::OnOwnedEnvelope(const std::shared_ptr<const v1::PeerEnvelope>& owned,
                                   Answer<v1::PeerReceipt> answer) {
  PHUB_ON_CONTROL();
  const v1::PeerEnvelope& envelope = *owned;
  if (absl::Status status = CheckEnvelope(envelope); !status.ok()) return answer(status, {});
  const RackIndex from{envelope.rack()};
  if (known_.NoteEnvelope(from, envelope.instance(), context_.clock.Now())) OnRackRestarted(from);
  if (known_.BeginSequence(from, envelope.first_sequence())) {
    FailOverLostMessages(from, "dropped messages to this daemon");
  }
  survey_.AdvanceSurvey();
  std::uint64_t sequence = envelope.first_sequence();
  for (const v1::PeerMessage& message : envelope.messages()) {
    if (known_.TakeSequence(from, sequence++)) HandlePeerMessage(from, message, owned);
  }
  v1::PeerReceipt receipt;
  receipt.set_instance(known_.instance());
  answer(absl::OkStatus(), receipt);
}

void RackMessages::OnReceipt(RackIndex from, const v1::PeerReceipt& receipt) {
  PHUB_ON_CONTROL();
  const bool restarted = known_.NoteReceipt(from, receipt.instance(), context_.clock.Now());
  survey_.AdvanceSurvey();
  if (restarted) OnRackRestarted(from);
}

// The daemon's instance has changed, so it may be a new process, which does not know the jobs that
// its predecessor had.
void RackMessages::OnRackRestarted(RackIndex rack) {
  deferred_.DropFrom(rack);
  for (const auto& job : jobs_.jobs()) {
    if (!job->running() || job->rack_run == nullptr) continue;
    const RackSteps steps =
        job->rack_run->protocol.OnPeer(rack, PeerEvent::kRestarted, known_.InstanceOf(rack));
    if (!Has(steps, RackAction::kFail)) continue;
    context_.counters.Add(ControlCounter::racks_restarted);
    ending_.Fail(*job,
                 ending_.MakeFault(
                     *job, "rack_restarted",
                     fmt::format("the daemon of {} was restarted and has lost its part of the job",
                                 context_.options.DescribeRack(rack))));
  }
}

void RackMessages::HandlePeerMessage(RackIndex from, const v1::PeerMessage& message,
                                     const std::shared_ptr<const void>& owner) {
  using Case = v1::PeerMessage::MessageCase;
  switch (message.message_case()) {
    case Case::kRequest: return opening_.HandleOpenRequest(from, message);
    case Case::kOpen: return opening_.HandleOpen(from, message);
    case Case::kRefused:
      if (from.value != 0) return context_.counters.Add(ControlCounter::peers_refused_place);
      return opening_.RefuseHeld(message.refused(), Incarnation{message.incarnation()});
    case Case::MESSAGE_NOT_SET: return;
    default: break;
  }
  Job* job = jobs_.FindIncarnation(Incarnation{message.incarnation()});
  if (message.message_case() == Case::kFailed) {  // the job may not be open here yet
    deferred_.DropOpen(message.incarnation());
    if (job != nullptr && from.value == 0) rack_jobs_.TakeFirstFault(*job, message.failed());
  }
  if (job == nullptr || !job->running() || job->rack_run == nullptr) return;  // already ended here
  if (!job->rack_run->TakesPart(from)) {
    return context_.counters.Add(ControlCounter::peers_refused_place);
  }
  RackProtocol& protocol = job->rack_run->protocol;
  protocol.OnPeer(from, PeerEvent::kSpoke, known_.InstanceOf(from));
  switch (message.message_case()) {
    case Case::kOpened: return opening_.HandleOpened(*job, from, message.opened());
    case Case::kConnect: return peer_lanes_.HandleConnect(*job, from, message.connect());
    case Case::kReady: return opening_.HandleReady(*job, from);
    case Case::kStart: return opening_.HandleStart(*job, from);
    case Case::kKeys:
      PHUB_CHECK(owner != nullptr, "job={}", job->name());  // only openings are deferred
      return rack_jobs_.HandlePeerKeys(*job, from, {owner, &message.keys()});
    case Case::kKeysAdded:
      return rack_jobs_.HandleKeysAdded(*job, from, message.keys_added().batches());
    case Case::kBarrier:
      job->rack_run->racks[from.value].barriers_reached = message.barrier().reached();
      return barriers_.CompleteBarriers(*job);
    case Case::kLoadRefused: {
      const v1::PeerLoadRefused& refused = message.load_refused();
      if (!IsNewestLoad(*job, refused.number())) {
        return context_.counters.Add(ControlCounter::load_refusals_late);
      }
      return loads_.DropLoaded(*job, refused.code(), refused.message());
    }
    case Case::kRankAwaited:
      return rack_waiting_.HandleRankAwaited(*job, from, message.rank_awaited());
    case Case::kRankReturned:
      return rack_waiting_.HandleRankReturned(*job, from, message.rank_returned());
    case Case::kRoundWaits: return late_rounds_.HandleQuestion(*job, from, message.round_waits());
    case Case::kRoundLate: return late_rounds_.HandleAnswer(*job, from, message.round_late());
    case Case::kRanksMissing:
      return arrivals_.HandleMissing(*job, from, message.ranks_missing().missing());
    case Case::kRankRefused:
      return arrivals_.HandleRefused(*job, from, message.rank_refused().refused());
    case Case::kHyperParametersAsked:
      return conflicts_.HandleQuestion(*job, from, message.hyper_parameters_asked());
    case Case::kHyperParameters: return conflicts_.HandleAnswer(*job, message.hyper_parameters());
    case Case::kRankLeft: return rack_jobs_.HandleRankLeft(*job, from, message.rank_left());
    case Case::kLeft:
      protocol.OnPeer(from, PeerEvent::kSaysLeft);
      NoteIfNobodyIsHere(*job);
      return rack_jobs_.EndIfAllLeft(*job);
    case Case::kFailed: {
      context_.counters.Add(ControlCounter::jobs_ended_elsewhere);
      if (!Has(protocol.On(RunEvent::kFailureReceived, from), RackAction::kFail)) return;
      return ending_.Fail(*job, message.failed().fault());
    }
    default: return rack_groups_.HandleMessage(*job, from, message, owner);
  }
}

void RackMessages::Defer(RackIndex from, const v1::PeerMessage& message) {
  PHUB_ON_CONTROL();
  if (deferred_.Add(from, message, context_.clock.Now())) return;
  context_.counters.Add(ControlCounter::peer_messages_dropped);
  if (!message.has_request()) return;
  RefuseRequest(from, message,
                context_.Refuse(
                    ControlCounter::joins_refused_capacity,
                    absl::ResourceExhaustedError(fmt::format(
                        "job {} was not opened: too many jobs wait at {} already; try again later",
                        message.request().job(), context_.options.DescribeRack(RackIndex{0})))));
}

// A job without ranks here must not stay forever: see CheckAbandoned. If all ranks of this rack
// have left, the job only waits for other racks' ranks.
void RackMessages::NoteIfNobodyIsHere(Job& job) {
  PHUB_ON_CONTROL();
  if (job.rack_run->protocol.left()) return;
  const bool somebody = std::any_of(job.members.begin(), job.members.end(), [](const Member& each) {
    return each.present() || each.state == Member::State::kReserved;
  });
  if (!somebody && job.nobody_since == 0) job.nobody_since = context_.clock.Now();
}

void RackMessages::PollRacks(TimeNs now) {
  PHUB_ON_CONTROL();
  if (known_.empty()) return;
  CheckQueues();
  liveness_.Check(now);
  HandleDeferred(now);
  survey_.AdvanceSurvey();
  opening_.RefuseLate(now);
  for (const auto& job : jobs_.jobs()) {
    if (!job->running() || job->rack_run == nullptr) continue;
    opening_.AdvanceRackRun(*job);
    opening_.CheckOpening(*job, now);
    conflicts_.Check(*job, now);
    arrivals_.Check(*job, now);
    RackRun& run = *job->rack_run;
    if (job->running() && Has(run.protocol.On(RunEvent::kPutOffDue, {}, now), RackAction::kFail)) {
      context_.counters.Add(ControlCounter::peer_faults);
      ending_.Fail(*job, std::move(run.put_off));
    }
  }
}

TimeNs RackMessages::NextRackTimer(TimeNs polled_at) const {
  PHUB_ON_CONTROL();
  TimeNs next = kNever;
  const bool spans = std::any_of(jobs_.jobs().begin(), jobs_.jobs().end(), [](const auto& job) {
    return job->running() && job->rack_run != nullptr;
  });
  next = std::min(next, opening_.NextDeadline());
  if (!held_.empty() && context_.options.topology_is_measured) {  // a rack may become silent
    next = std::min(next, polled_at + context_.options.liveness_timeout / 8);
  }
  const DurationNs again = survey_.AwaitsSurvey() ? 50 * kMillisecond : kMillisecond;
  if (!deferred_.empty()) next = std::min(next, polled_at + again);
  const bool ends = std::any_of(jobs_.jobs().begin(), jobs_.jobs().end(), [](const auto& job) {
    return job->running() && job->rack_run != nullptr && job->rack_run->protocol.crowded_out();
  });
  if (ends) next = std::min(next, polled_at + kMillisecond);
  for (const auto& job : jobs_.jobs()) {
    if (!job->running() || job->rack_run == nullptr) continue;
    next = std::min(next, job->rack_run->protocol.put_off_due().value_or(kNever));
    next = std::min({next, RackConflicts::NextTimer(*job), RackArrivals::NextTimer(*job)});
  }
  if (!spans) return next;
  // Often enough to detect a silent rack in time; cheap.
  return std::min(next, polled_at + context_.options.liveness_timeout / 8);
}

// While there is no topology, requests stay deferred; those whose ranks have been refused meanwhile
// are dropped.
void RackMessages::HandleDeferred(TimeNs now) {
  const bool requests_wait = survey_.AwaitsSurvey() && !context_.drain.draining;
  const DurationNs patience = kHeldTimeouts * context_.options.liveness_timeout + kSurveyPatience;
  deferred_.HandleAll([&](const DeferredMessage& each) {
    if (!requests_wait || !each.message.has_request()) {
      HandlePeerMessage(each.from, each.message);
    } else if (now - each.since < patience) {
      Defer(each.from, each.message);
    }
  });
}

}  // namespace phub::server
