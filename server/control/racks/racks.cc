// Handles envelopes and messages from the daemons of other racks, and detects silent daemons.
#include "server/control/racks/racks.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/base/printable.h"
#include "common/wire/message.h"
#include "server/control/checkpoint/deal.h"
#include "server/control/checkpoint/loads.h"
#include "server/control/jobs/ending.h"
#include "server/control/jobs/pending_calls.h"
#include "server/control/racks/peer_lanes.h"
#include "server/control/racks/rack_jobs.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/racks/rack_opening.h"
#include "server/control/racks/rack_run.h"
#include "server/control/racks/rack_waiting.h"
#include "server/control/racks/topology_survey.h"
#include "server/control/ranks/barriers.h"
#include "server/control/ranks/local_rack.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

constexpr std::size_t kDeferredMax = 1024;
constexpr std::size_t kDeferredBytesMax = 64 << 20;

// For messages that request or open a job: whether the newer one replaces the older one. Workers
// may request any number of runs, and only the last request counts. Rack 0 opens few runs, so
// `open` messages of different runs are all kept.
bool IsSameRequest(const v1::PeerMessage& one, const v1::PeerMessage& other) {
  const auto job_of = [](const v1::PeerMessage& message) -> const v1::PeerJob& {
    return message.has_open() ? message.open() : message.request();
  };
  const bool same_run = one.has_request() || one.incarnation() == other.incarnation();
  return one.message_case() == other.message_case() && same_run &&
         job_of(one).tenant() == job_of(other).tenant() && job_of(one).job() == job_of(other).job();
}

}  // namespace

std::string HashOfRacks(const ControlOptions& options, std::size_t core_count) {
  std::string text = fmt::format(
      "control {}..{}\nlanes {}..{}\nchunk_bytes {}\nstaging {}\ncore_loops {}\n",
      kProtocolVersionMin, kProtocolVersionMax, wire::kLaneVersionMin, wire::kLaneVersion,
      options.chunk_bytes, options.staging_bytes_per_lane, core_count);
  text += fmt::format("daemon {} of {}\n", options.rack_self, options.daemons_in_rack());
  for (const std::string& rack : options.racks) text += rack + "\n";
  text += fmt::format("aggregators {}\n", options.aggregator_count);
  text += DescribeTopologyForHash(options);
  return Sha256Hex(text);
}

v1::PeerEnvelope RackMessages::MakeEnvelope(RackIndex to) const {
  v1::PeerEnvelope envelope;
  envelope.set_protocol_version(kProtocolVersionMax);
  envelope.set_configuration(racks_.configuration);
  envelope.set_rack(context_.options.rack_index);
  envelope.set_to_rack(to.value);
  envelope.set_instance(racks_.instance);
  envelope.set_daemon(context_.options.rack_self);
  envelope.set_daemon_count(context_.options.daemons_in_rack());
  envelope.set_endpoint(context_.options.racks[context_.options.rack_index]);
  return envelope;
}

absl::Status RackMessages::CheckEnvelope(const v1::PeerEnvelope& envelope) {
  const auto refuse = [&](ControlCounter counter, const std::string& what) {
    context_.counters.Add(counter);
    if (std::exchange(racks_.last_refusal, what) != what) {
      LogWarning("event=peer_refused message=\"{}\"", what);
    }
    if (envelope.rack() < racks_.known.size()) racks_.known[envelope.rack()].is_refused = what;
    return absl::FailedPreconditionError(what);
  };
  if (racks_.known.empty()) {
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
  if (envelope.rack() >= racks_.known.size() || envelope.rack() == context_.options.rack_index ||
      envelope.to_rack() != context_.options.rack_index) {
    return refuse(ControlCounter::peers_refused_place,
                  fmt::format("the daemon of rack {} expects this one to be rack {}, but it is "
                              "rack {} of {}; check `racks` and `rack_self` of both",
                              envelope.rack(), envelope.to_rack(), context_.options.rack_index,
                              racks_.known.size()));
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
  if (envelope.configuration() != racks_.configuration) {
    return refuse(
        ControlCounter::peers_refused_configuration,
        fmt::format("rack {} has configuration {}, rack {} has {}; both daemons must have the same "
                    "`racks`, topology, chunk_bytes, staging_bytes_per_lane, number of core loops "
                    "and versions: compare phubd --dump-config of both",
                    envelope.rack(), Shortened(envelope.configuration()),
                    context_.options.rack_index, Shortened(racks_.configuration)));
  }
  return absl::OkStatus();
}

void RackMessages::OnEnvelope(const v1::PeerEnvelope& envelope, Answer<v1::PeerReceipt> answer) {
  if (absl::Status status = CheckEnvelope(envelope); !status.ok()) return answer(status, {});
  const RackIndex from{envelope.rack()};
  KnownRack& known = racks_.known[from.value];
  known.last_heard = context_.clock.Now();
  known.is_refused.clear();
  if (known.instance != envelope.instance()) {
    known.instance = envelope.instance();
    known.next_sequence.reset();
    OnRackRestarted(from);
  }
  if (known.next_sequence && envelope.first_sequence() > *known.next_sequence) {
    FailOverLostMessages(from, "dropped messages to this daemon");
    known.next_sequence.reset();
  }
  if (!known.next_sequence) known.next_sequence = envelope.first_sequence();
  survey_.AdvanceSurvey();
  std::uint64_t sequence = envelope.first_sequence();
  for (const v1::PeerMessage& message : envelope.messages()) {
    if (sequence++ < *known.next_sequence) continue;  // a repetition: the receipt was lost
    known.next_sequence = sequence;
    HandlePeerMessage(from, message);
  }
  v1::PeerReceipt receipt;
  receipt.set_instance(racks_.instance);
  answer(absl::OkStatus(), receipt);
}

void RackMessages::OnReceipt(RackIndex from, const v1::PeerReceipt& receipt) {
  KnownRack& known = racks_.known[from.value];
  known.last_heard = context_.clock.Now();
  known.refuses.clear();
  survey_.AdvanceSurvey();
  if (known.instance == receipt.instance()) return;
  known.instance = receipt.instance();
  known.next_sequence.reset();
  OnRackRestarted(from);
}

// The daemon's instance has changed, so it may be a new process, which does not know the jobs that
// its predecessor had.
void RackMessages::OnRackRestarted(RackIndex rack) {
  std::erase_if(racks_.deferred, [&](const auto& each) { return each.from == rack; });
  for (const auto& job : jobs_.jobs()) {
    if (!job->running() || job->rack_run == nullptr) continue;
    const RackSteps steps = job->rack_run->protocol.OnPeer(rack, PeerEvent::kRestarted,
                                                           racks_.known[rack.value].instance);
    if (!Has(steps, RackAction::kFail)) continue;
    context_.counters.Add(ControlCounter::racks_restarted);
    ending_.Fail(*job,
                 ending_.MakeFault(
                     *job, "rack_restarted",
                     fmt::format("the daemon of {} was restarted and has lost its part of the job",
                                 context_.options.DescribeRack(rack))));
  }
}

void RackMessages::HandlePeerMessage(RackIndex from, const v1::PeerMessage& message) {
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
    std::erase_if(racks_.deferred, [&](const auto& each) {
      return each.message.has_open() && each.message.incarnation() == message.incarnation();
    });
  }
  if (job == nullptr || !job->running() || job->rack_run == nullptr) return;  // already ended here
  RackProtocol& protocol = job->rack_run->protocol;
  protocol.OnPeer(from, PeerEvent::kSpoke, racks_.known[from.value].instance);
  switch (message.message_case()) {
    case Case::kOpened: return opening_.HandleOpened(*job, from, message.opened());
    case Case::kConnect: return peer_lanes_.HandleConnect(*job, from, message.connect());
    case Case::kReady: return opening_.HandleReady(*job, from);
    case Case::kStart: return opening_.HandleStart(*job, from);
    case Case::kKeys: return rack_jobs_.HandlePeerKeys(*job, from, message.keys());
    case Case::kKeysAdded:
      job->rack_run->racks[from.value].batches_added = message.keys_added().batches();
      return pending_calls_.AnswerAcknowledged(*job);
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
    default: return;
  }
}

void RackMessages::Defer(RackIndex from, const v1::PeerMessage& message) {
  const TimeNs since = racks_.deferred_since != 0 ? racks_.deferred_since : context_.clock.Now();
  for (DeferredMessage& earlier : racks_.deferred) {
    if (earlier.from != from || !IsSameRequest(earlier.message, message)) continue;
    earlier = {from, message, since};
    return;
  }
  std::size_t bytes = message.ByteSizeLong();
  for (const DeferredMessage& earlier : racks_.deferred) bytes += earlier.message.ByteSizeLong();
  if (racks_.deferred.size() >= kDeferredMax || bytes > kDeferredBytesMax) {
    context_.counters.Add(ControlCounter::peer_messages_dropped);
    if (!message.has_request()) return;
    return RefuseRequest(
        from, message,
        context_.Refuse(
            ControlCounter::joins_refused_capacity,
            absl::ResourceExhaustedError(fmt::format(
                "job {} was not opened: too many jobs wait at {} already; try again later",
                message.request().job(), context_.options.DescribeRack(RackIndex{0})))));
  }
  racks_.deferred.push_back({from, message, since});
}

// A job without ranks here must not stay forever: see CheckAbandoned. If all ranks of this rack
// have left, the job only waits for other racks' ranks.
void RackMessages::NoteIfNobodyIsHere(Job& job) {
  if (job.rack_run->protocol.left()) return;
  const bool somebody = std::any_of(job.members.begin(), job.members.end(), [](const Member& each) {
    return each.present() || each.state == Member::State::kReserved;
  });
  if (!somebody && job.nobody_since == 0) job.nobody_since = context_.clock.Now();
}

void RackMessages::PollRacks(TimeNs now) {
  if (racks_.known.empty()) return;
  CheckQueues();
  CheckRackLiveness(now);
  std::deque<DeferredMessage> deferred = TakeDeferred();
  for (const DeferredMessage& each : deferred) {
    racks_.deferred_since = each.since;
    HandlePeerMessage(each.from, each.message);
  }
  racks_.deferred_since = 0;
  survey_.AdvanceSurvey();
  for (auto held = racks_.held.begin(); held != racks_.held.end();) {
    const auto next = std::next(held);
    if (now >= opening_.PatienceOf(*held)) {
      const HeldJoin late = std::move(*held);
      racks_.held.erase(held);
      const std::string why = opening_.WhyNotOpened();
      late.answer(context_.Refuse(ControlCounter::joins_refused_rack,
                                  absl::UnavailableError(fmt::format("job {} was not opened: {}",
                                                                     late.request.job(), why))),
                  {});
    }
    held = next;
  }
  for (const auto& job : jobs_.jobs()) {
    if (!job->running() || job->rack_run == nullptr) continue;
    opening_.AdvanceRackRun(*job);
    opening_.CheckOpening(*job, now);
    RackRun& run = *job->rack_run;
    if (job->running() && Has(run.protocol.On(RunEvent::kPutOffDue, {}, now), RackAction::kFail)) {
      context_.counters.Add(ControlCounter::peer_faults);
      ending_.Fail(*job, std::move(run.put_off));
    }
  }
}

void RackMessages::CheckRackLiveness(TimeNs now) {
  for (std::uint32_t rack = 0; rack < racks_.known.size(); ++rack) {
    if (rack == context_.options.rack_index) continue;
    for (const auto& job : jobs_.jobs()) {
      if (!job->running() || job->rack_run == nullptr) continue;
      const TimeNs heard = std::max(racks_.known[rack].last_heard, job->created_at);
      if (now - heard < context_.options.liveness_timeout) continue;
      context_.counters.Add(ControlCounter::racks_silent);
      // The loss of lanes explains more than silence does, so a deferred loss becomes due now.
      RackProtocol& protocol = job->rack_run->protocol;
      const RackSteps steps = protocol.On(RunEvent::kPeerSilent, RackIndex{rack}, now);
      if (!Has(steps, RackAction::kFail)) continue;
      const bool never = racks_.known[rack].last_heard == 0;
      ending_.Fail(
          *job,
          ending_.MakeFault(
              *job, "rack_silent",
              fmt::format("the daemon of {} {}{}", context_.options.DescribeRack(RackIndex{rack}),
                          never ? std::string("has sent no message that this daemon accepted")
                                : fmt::format("has been silent for {}", FormatAge(now - heard)),
                          DescribeTrouble(racks_.known[rack]))));
    }
  }
}

TimeNs RackMessages::NextRackTimer(TimeNs polled_at) const {
  TimeNs next = kNever;
  const bool spans = std::any_of(jobs_.jobs().begin(), jobs_.jobs().end(), [](const auto& job) {
    return job->running() && job->rack_run != nullptr;
  });
  for (const HeldJoin& held : racks_.held) next = std::min(next, opening_.PatienceOf(held));
  if (!racks_.held.empty() && context_.options.topology_is_measured) {  // a rack may become silent
    next = std::min(next, polled_at + context_.options.liveness_timeout / 8);
  }
  const DurationNs again = survey_.AwaitsSurvey() ? 50 * kMillisecond : kMillisecond;
  if (!racks_.deferred.empty()) next = std::min(next, polled_at + again);
  const bool ends = std::any_of(jobs_.jobs().begin(), jobs_.jobs().end(), [](const auto& job) {
    return job->running() && job->rack_run != nullptr && job->rack_run->protocol.crowded_out();
  });
  if (ends) next = std::min(next, polled_at + kMillisecond);
  for (const auto& job : jobs_.jobs()) {
    if (!job->running() || job->rack_run == nullptr) continue;
    next = std::min(next, job->rack_run->protocol.put_off_due().value_or(kNever));
  }
  if (!spans) return next;
  // Often enough to detect a silent rack in time; cheap.
  return std::min(next, polled_at + context_.options.liveness_timeout / 8);
}

std::deque<DeferredMessage> RackMessages::TakeDeferred() {
  std::deque<DeferredMessage> taken;
  taken.swap(racks_.deferred);
  if (!survey_.AwaitsSurvey() || context_.drain.draining) return taken;
  const DurationNs patience = kHeldTimeouts * context_.options.liveness_timeout + kSurveyPatience;
  const TimeNs now = context_.clock.Now();
  std::deque<DeferredMessage> others;
  for (DeferredMessage& each : taken) {
    if (!each.message.has_request()) {
      others.push_back(std::move(each));
    } else if (now - each.since < patience) {
      racks_.deferred.push_back(std::move(each));
    }
  }
  return others;
}

}  // namespace phub::server
