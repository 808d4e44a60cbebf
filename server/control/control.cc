#include "server/control/control.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/owner_thread.h"
#include "server/control/admin/admin.h"
#include "server/control/admin/draining.h"
#include "server/control/admin/job_descriptions.h"
#include "server/control/admin/job_dumps.h"
#include "server/control/admin/job_traces.h"
#include "server/control/admin/metrics.h"
#include "server/control/admin/stall_reports.h"
#include "server/control/admin/tenants.h"
#include "server/control/checkpoint/loads.h"
#include "server/control/checkpoint/snapshots.h"
#include "server/control/checkpoint/versions.h"
#include "server/control/jobs/diagnoses.h"
#include "server/control/jobs/ending.h"
#include "server/control/jobs/host_memory.h"
#include "server/control/jobs/job_invariants.h"
#include "server/control/jobs/job_table.h"
#include "server/control/jobs/pending_calls.h"
#include "server/control/jobs/presence.h"
#include "server/control/jobs/sessions.h"
#include "server/control/jobs/stall_queries.h"
#include "server/control/jobs/tenant_shares.h"
#include "server/control/jobs/tenant_totals.h"
#include "server/control/keys/group_keys.h"
#include "server/control/keys/key_removals.h"
#include "server/control/keys/keys.h"
#include "server/control/lanes/lanes.h"
#include "server/control/lanes/rank_memories.h"
#include "server/control/racks/group_list.h"
#include "server/control/racks/peer_lanes.h"
#include "server/control/racks/rack_arrivals.h"
#include "server/control/racks/rack_conflicts.h"
#include "server/control/racks/rack_groups.h"
#include "server/control/racks/rack_invariants.h"
#include "server/control/racks/rack_jobs.h"
#include "server/control/racks/rack_late_rounds.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/racks/rack_opening.h"
#include "server/control/racks/rack_plans.h"
#include "server/control/racks/rack_waiting.h"
#include "server/control/racks/topology_survey.h"
#include "server/control/ranks/arrivals.h"
#include "server/control/ranks/barriers.h"
#include "server/control/ranks/joins.h"
#include "server/control/ranks/late_rounds.h"
#include "server/control/ranks/liveness.h"
#include "server/control/ranks/local_rack.h"
#include "server/control/ranks/seats.h"
#include "server/control/text.h"
#include "server/core/exchange/rack_plan.h"

namespace phub::server {
namespace {

// Acknowledgements are counters, not events. A core loop usually rings control's doorbell after it
// executed commands; this interval bounds the delay if it does not.
constexpr DurationNs kAcknowledgementPollInterval = kMillisecond;
// A timer that runs later than this fraction of the liveness timeout means that the daemon itself
// was stopped or starved.
constexpr int kLatenessFraction = 8;

}  // namespace

// The parts, in the order of construction. A part may hold a reference to a part that is built
// later, but must not use it before all parts are built.
struct Control::Parts {
  Parts(const Clock& clock, Random& random, std::vector<CoreHandle> handles, ControlOptions options)
      : context(clock, random, std::move(handles), std::move(options)) {
    context.forgive_silence = [this](DurationNs duration) { liveness.ForgiveSilence(duration); };
    // They are notified in this order when a job ends or a new process takes over a rank.
    for (JobObserver* observer : std::initializer_list<JobObserver*>{
             &rack_jobs, &rack_groups, &key_removals, &groups, &versions, &snapshots, &loads,
             &job_dumps, &job_traces}) {
      jobs.AddObserver(*observer);
    }
  }

  Context context;
  JobTable jobs{context};
  Sessions sessions{context};
  HostMemory host_memory{context};
  TenantShares shares{context, jobs};
  TenantTotals totals;
  Ending ending{context, jobs, sessions, host_memory, shares, totals};
  StallQueries stall_queries{context};
  Diagnoses diagnoses{context, ending, stall_queries};
  PendingCalls pending_calls{context, ending, rack_jobs, rack_groups};
  Presence presence{context, jobs, diagnoses, rack_waiting};

  SumStreams sum_streams{context, jobs};
  RankMemories rank_memories{context, host_memory, jobs};
  Lanes lanes{context, jobs, sessions, presence, rank_memories, peer_lanes, sum_streams};
  Keys keys{context,       sessions, ending,    pending_calls, host_memory,
            rank_memories, shares,   rack_jobs, groups};
  KeyRemovals key_removals{context,     jobs,          sessions, ending, pending_calls,
                           host_memory, rank_memories, shares,   groups};
  GroupKeys groups{context,       sessions, ending, pending_calls, host_memory,
                   rank_memories, shares,   keys,   rack_groups};

  LocalRack local_rack{context, jobs, ending, diagnoses, rack_jobs};
  Barriers barriers{context, sessions, local_rack, rack_jobs};
  Seats seats{context,       jobs,     sessions, ending,        diagnoses,
              pending_calls, presence, barriers, rank_memories, rack_jobs};
  Arrivals arrivals{context, jobs, ending, rack_arrivals};
  LateRounds late_rounds{context, stall_queries, rack_late_rounds};
  Liveness liveness{context, jobs, sessions, ending, diagnoses, presence, rack_jobs};
  Joins joins{context,       jobs,        local_rack,    seats,  sessions, arrivals,
              pending_calls, host_memory, rank_memories, shares, opening,  sum_streams};

  Versions versions{context, jobs, sessions};
  Snapshots snapshots{context, jobs, host_memory, pending_calls, versions};
  Loads loads{context, jobs, host_memory, sessions, pending_calls, rack_jobs};

  KnownRacks known_racks{context.options, context.cores.size(), context.random};
  DeferredMessages deferred;
  HeldJoins held;
  TopologySurvey survey{context, known_racks, deferred, rack_messages};
  RackPlans plans{context, survey};
  RackMessages rack_messages{context,        known_racks,
                             deferred,       held,
                             jobs,           barriers,
                             ending,         loads,
                             peer_lanes,     pending_calls,
                             rack_jobs,      opening,
                             rack_waiting,   rack_late_rounds,
                             rack_conflicts, rack_arrivals,
                             rack_groups,    survey};
  RackJobs rack_jobs{context, known_racks, jobs,          barriers,
                     ending,  keys,        pending_calls, rack_messages};
  GroupList group_list{context, ending, host_memory, rack_messages, rack_groups};
  RackGroups rack_groups{context,       ending,     groups,       group_list,
                         pending_calls, peer_lanes, rack_messages};
  RackWaiting rack_waiting{context, rack_messages};
  RackLateRounds rack_late_rounds{context, stall_queries, rack_messages};
  RackArrivals rack_arrivals{context, rack_messages};
  RackConflicts rack_conflicts{context, ending, stall_queries, rack_messages};
  PeerLanes peer_lanes{context, known_racks, ending, jobs, rack_messages, opening};
  RackOpening opening{context,   known_racks, deferred,      held,       joins,
                      ending,    jobs,        local_rack,    peer_lanes, pending_calls,
                      rack_jobs, rack_groups, rack_messages, plans,      survey};

  Metrics metrics{context, jobs, totals};
  StallReports stall_reports{context, jobs, stall_queries};
  JobDumps job_dumps{context, jobs, sessions, stall_reports};
  JobTraces job_traces{context, jobs};
  JobDescriptions descriptions{context, jobs, metrics, plans, stall_reports, totals};
  Admin admin{context, jobs, local_rack, descriptions};
  Draining draining{context, jobs, ending, admin, descriptions};
  Tenants tenants{context, jobs, sessions, snapshots, shares, totals};
};

Control::Control(const Clock& clock, Random& random, std::vector<CoreHandle> cores,
                 ControlOptions options)
    : parts_(std::make_unique<Parts>(clock, random, std::move(cores), std::move(options))),
      polled_at_(parts_->context.started_at),
      wake_at_(kNever) {}

Control::~Control() = default;

Admin& Control::admin() { return parts_->admin; }
Joins& Control::joins() { return parts_->joins; }
Barriers& Control::barriers() { return parts_->barriers; }
ControlCounters& Control::counters() { return parts_->context.counters; }
Draining& Control::draining() { return parts_->draining; }
HostMemory& Control::host_memory() { return parts_->host_memory; }
JobDumps& Control::job_dumps() { return parts_->job_dumps; }
JobTraces& Control::job_traces() { return parts_->job_traces; }
KeyRemovals& Control::key_removals() { return parts_->key_removals; }
Keys& Control::keys() { return parts_->keys; }
Lanes& Control::lanes() { return parts_->lanes; }
Liveness& Control::liveness() { return parts_->liveness; }
Loads& Control::loads() { return parts_->loads; }
LocalRack& Control::local_rack() { return parts_->local_rack; }
Metrics& Control::metrics() { return parts_->metrics; }
PeerLanes& Control::peer_lanes() { return parts_->peer_lanes; }
RackMessages& Control::rack_messages() { return parts_->rack_messages; }
RankMemories& Control::rank_memories() { return parts_->rank_memories; }
Seats& Control::seats() { return parts_->seats; }
Snapshots& Control::snapshots() { return parts_->snapshots; }
StallReports& Control::stall_reports() { return parts_->stall_reports; }
SumStreams& Control::sum_streams() { return parts_->sum_streams; }
Tenants& Control::tenants() { return parts_->tenants; }
TopologySurvey& Control::survey() { return parts_->survey; }
ControlTurns& Control::turns() { return parts_->context.turns; }
Versions& Control::versions() { return parts_->versions; }

void Control::SetPeerNetwork(PeerNetwork& network) {
  parts_->rack_messages.SetPeerNetwork(network);
  parts_->peer_lanes.SetPeerNetwork(network);
}

void Control::SetSumNetwork(SumNetwork& network) { parts_->sum_streams.SetNetwork(network); }

void Control::SetLaneEndpoint(CoreIndex core, std::string host, std::uint16_t port) {
  std::vector<LaneEndpoint>& endpoints = parts_->context.endpoints;
  PHUB_CHECK(core.value < endpoints.size(), "core={}", core.value);
  endpoints[core.value] = {std::move(host), port};
}

void Control::HandleFault(Job& job, CoreIndex core, const Event& event) {
  if (!job.running() || job.diagnosis) return;  // report only the first cause
  Parts& parts = *parts_;
  if (event.source.is_rack()) {
    return event.code == FaultCode::kRoundMismatch
               ? parts.rack_conflicts.HandleMismatch(job, event)
               : parts.peer_lanes.FailOverPeerFault(job, core, event);
  }
  if (event.code != FaultCode::kLaneLost) {
    parts.context.counters.Add(ControlCounter::core_faults);
    return parts.diagnoses.FailOverCoreFault(job, core, event);
  }
  parts.context.counters.Add(ControlCounter::lanes_lost);
  Diagnosis diagnosis;
  diagnosis.cause = Diagnosis::Cause::kLaneLost;
  diagnosis.rank = event.source.rank();
  diagnosis.core = core;
  diagnosis.loss = DescribeLoss(event);
  parts.diagnoses.BeginDiagnosis(job, std::move(diagnosis));
}

void Control::HandleEvent(CoreIndex core, const Event& event) {
  Parts& parts = *parts_;
  Job& job = parts.jobs.OwnerOf(event.shard, core);
  switch (event.kind) {
    case Event::Kind::kFault: return HandleFault(job, core, event);
    case Event::Kind::kLaneClosed:
      return event.source.is_rack() ? parts.peer_lanes.HandlePeerLaneClosed(job, core, event)
                                    : parts.lanes.HandleLaneClosed(job, core, event);
    case Event::Kind::kStallsReported:
      return parts.stall_queries.HandleStallsReported(job, core, event);
    case Event::Kind::kVersionsReported:
      return parts.versions.HandleVersionsReported(job, core, event);
    case Event::Kind::kSnapshotTaken: return parts.snapshots.HandleSnapshotTaken(job, core, event);
    case Event::Kind::kKeysRemoved:
      parts.key_removals.HandleKeysRemoved(job, event);
      return parts.groups.HandleKeysRemoved(job, event);
    case Event::Kind::kNonFinite: return parts.diagnoses.NoteNonFinite(job, event);
    case Event::Kind::kJobEnded:
      if (++job.cores_ended == parts.context.cores.size()) parts.ending.Release(job);
      return;
    case Event::Kind::kNone: break;
  }
  PHUB_CHECK(false, "event kind={}", static_cast<int>(event.kind));
}

void Control::PollJob(Job& job, TimeNs now) {
  Parts& parts = *parts_;
  if (job.running()) parts.keys.HandOutBatches(job);
  parts.pending_calls.AnswerAcknowledged(job);
  parts.key_removals.Advance(job);
  parts.groups.Advance(job);
  parts.stall_queries.CheckQueries(job, now);
  parts.versions.CheckVersionQueries(job, now);
  parts.snapshots.AdvanceSnapshot(job, now);
  parts.loads.AdvanceLoad(job, now);
  parts.presence.CheckWaiting(job, now);
  parts.diagnoses.AdvanceDiagnosis(job, now);
  parts.liveness.CheckAbandoned(job, now);
  parts.arrivals.Check(job, now);
  parts.late_rounds.Check(job, now);
  parts.draining.CheckDeadline(job, now);
  parts.sum_streams.Advance(job, now);
  if (job.unannounced && now >= job.announce_at) parts.ending.Announce(job);
  if (!job.running() && !job.end_commands_sent && now >= job.end_commands_at) {
    parts.ending.SendEndCommands(job);
  }
}

void Control::Poll() {
  Parts& parts = *parts_;
  Context& context = parts.context;
  context.turns.Begin();
  const TimeNs now = context.clock.Now();
  if (wake_at_ < now && now - wake_at_ > context.options.liveness_timeout / kLatenessFraction) {
    parts.liveness.ForgiveSilence(now - wake_at_);
  }
  for (const auto& job : parts.jobs.jobs()) parts.snapshots.NoteSnapshotAcknowledged(*job);
  for (std::size_t core = 0; core < context.cores.size(); ++core) {
    context.cores[core].Flush();
    Event event;
    while (context.cores[core].TakeEvent(event)) HandleEvent(CoreAt(core), event);
  }
  parts.rack_messages.PollRacks(now);
  parts.liveness.CheckLiveness(now);
  for (const auto& job : parts.jobs.jobs()) {
    if (!job->released()) PollJob(*job, now);
  }
  parts.job_dumps.Check(now);
  parts.job_traces.Check(now);
  parts.seats.CheckLeases(now);  // after PollJob: a lease begins when a join is answered
  parts.ending.ReapReleased();
  parts.joins.TryWaiting();
  context.log.Poll();
  polled_at_ = now;
  wake_at_ = kNever;
  NoteTimers();
  if constexpr (kCheckedBuild) CheckInvariants();
}

void Control::CheckInvariants() const {
  const Parts& parts = *parts_;
  const Context& context = parts.context;
  context.ledger.CheckInvariants();
  parts.jobs.CheckInvariants();
  parts.sessions.CheckInvariants(parts.jobs);
  for (const auto& job : parts.jobs.jobs()) {
    CheckJob(*job, context.ledger, context.cores.size());
    if (job->rack_run == nullptr) continue;
    CheckRackRun(*job, RackIndex{context.options.rack_index}, context.cores.size());
  }
}

TimeNs Control::NextTimer(const Job& job) const {
  const Context& context = parts_->context;
  TimeNs next = kNever;
  for (const StallQuery& query : job.queries) {
    if (query.done) next = std::min(next, query.deadline);
  }
  for (const VersionQuery& query : job.checkpoints->version_queries) {
    if (query.done) next = std::min(next, query.deadline);
  }
  if (!job.running()) {
    if (job.unannounced) return std::min(next, job.announce_at);
    return job.end_commands_sent ? next : std::min(next, job.end_commands_at);
  }
  if (job.diagnosis) {
    const TimeNs grace = job.diagnosis->stream_grace;
    next = std::min(next, job.diagnosis->deadline);
    // After the grace period only reports are awaited, and they need no timer.
    return job.diagnosis->reported ? std::min(next, grace) : next;
  }
  for (const Member& member : job.members) {
    if (!member.present()) continue;
    if (member.lanes_kept) {
      next = std::min(next, parts_->liveness.next_look());
    } else if (!member.silent) {
      next = std::min(next,
                      member.last_heard + PatienceWith(member, context.options.liveness_timeout));
    }
    if (member.state != Member::State::kLost) continue;
    next = std::min(next, context.InOutage(context.clock.Now())
                              ? std::max(member.awaited_until, context.outage_since + kOutageMax)
                              : member.awaited_until);
  }
  next = std::min(next, parts_->sum_streams.NextTimer(job, context.clock.Now()));
  next = std::min(next, parts_->seats.NextLease(job));
  next = std::min(next, parts_->arrivals.NextTimer(job));
  next = std::min(next, parts_->late_rounds.NextTimer(job));
  if (job.nobody_since != 0) {
    next = std::min(next, job.nobody_since + context.options.abandoned_timeout);
  }
  if (context.drain.draining) next = std::min(next, context.drain.deadline);
  const JobCheckpoints& checkpoints = *job.checkpoints;
  if (checkpoints.snapshot) next = std::min(next, checkpoints.snapshot->deadline);
  if (checkpoints.arrival) next = std::min(next, checkpoints.arrival->deadline);
  return next;
}

// Ignores calls that wait only for core loops.
TimeNs Control::NoteTimers() {
  TimeNs timer = parts_->rack_messages.NextRackTimer(polled_at_);
  timer = std::min({timer, parts_->joins.NextTimer(), parts_->host_memory.left().NextCheck(),
                    parts_->job_dumps.NextTimer(), parts_->job_traces.NextTimer(),
                    parts_->context.log.NextTimer()});
  for (const auto& job : parts_->jobs.jobs()) timer = std::min(timer, NextTimer(*job));
  // A timer that a call has just started may have expired already. That is not a late wake-up.
  wake_at_ = std::min(wake_at_, std::max(timer, parts_->context.clock.Now()));
  return timer;
}

TimeNs Control::NextDeadline() {
  const auto waits = [](const auto& job) {
    const JobCheckpoints& checkpoints = *job->checkpoints;
    // Doorbells ring for pages; acknowledgements are polled for.
    const bool snapshot = checkpoints.snapshot != nullptr &&
                          (checkpoints.snapshot->state == SnapshotRun::State::kAccepting ||
                           checkpoints.snapshot->state == SnapshotRun::State::kDropping);
    return !job->pending.empty() || KeyRemovals::Waits(*job) || GroupKeys::Waits(*job) ||
           RackGroups::Waits(*job) || snapshot || !checkpoints.replaced.empty();
  };
  const auto is_behind = [](const CoreLink& link) { return link.backlog() > 0; };
  const TimeNs timer = NoteTimers();
  if (std::ranges::none_of(parts_->jobs.jobs(), waits) &&
      std::ranges::none_of(parts_->context.cores, is_behind)) {
    return timer;
  }
  return std::min(timer, polled_at_ + kAcknowledgementPollInterval);
}

std::uint64_t Control::memory_bytes() const { return parts_->context.ledger.used_bytes(); }
std::size_t Control::job_count() const { return parts_->jobs.jobs().size(); }

}  // namespace phub::server
