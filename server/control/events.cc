#include <algorithm>

#include "common/base/check.h"
#include "common/base/log.h"
#include "server/control/state.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

// Acknowledgements are counters, not events: whoever rings control's bell after executing commands
// is faster, and this is the bound if nobody does.
constexpr DurationNs kAcknowledgementPollInterval = kMillisecond;
// How late a timer may run before the lapse is taken for control's own (a stopped or starved
// daemon), as a part of the liveness timeout.
constexpr int kLatenessFraction = 8;

}  // namespace

bool Control::State::Acknowledged(const std::vector<Ticket>& tickets) const {
  for (std::size_t core = 0; core < tickets.size(); ++core) {
    if (!links[core].Acknowledged(tickets[core])) return false;
  }
  return true;
}

void Control::State::AnswerAcknowledged(Job& job) {
  std::list<PendingCall> ready;
  std::list<PendingCall> refused;
  for (auto call = job.pending.begin(); call != job.pending.end();) {
    const auto next = std::next(call);
    const PagesState pages = call->pages == nullptr ? PagesState::kTaken : call->pages->load();
    const bool there = !call->awaits_racks || RacksHave(job, call->batches);
    const bool done =
        std::ranges::all_of(call->done, [](const DoneFlag& each) { return each->load(); });
    if (pages == PagesState::kRefused) {
      refused.splice(refused.end(), job.pending, call);
    } else if (there && done && pages == PagesState::kTaken && Acknowledged(call->tickets) &&
               KeysAcknowledged(job, call->batches)) {
      ready.splice(ready.end(), job.pending, call);
    }
    call = next;
  }
  for (PendingCall& call : ready) call.succeed();
  for (PendingCall& call : refused) {
    call.fail(Refuse(ControlCounter::keys_refused_region,
                     absl::ResourceExhaustedError(fmt::format(
                         "job {}: the system does not give phubd the memory for this rank's "
                         "gradients: free memory on that host, or lower memory_max",
                         job.name()))));
  }
  // Only once nobody waits any more: ending a job refuses what is still pending.
  const auto has_left = [](const Member& each) { return each.state == Member::State::kLeft; };
  if (!ready.empty() && job.pending.empty() && job.running() && !job.diagnosis &&
      std::all_of(job.members.begin(), job.members.end(), has_left)) {
    if (job.rack_run == nullptr) return EndInOrder(job);
    EndIfAllLeft(job);
  }
}

void Control::State::HandleLaneClosed(Job& job, CoreIndex core, const Event& event) {
  const Rank rank = event.source.rank();
  PHUB_CHECK(rank.value < job.members.size(), "rank={}", rank.value);
  LanePlace& place = job.members[rank.value].lanes[core.value];
  place.loss = DescribeLoss(event.error, event.protocol_error, event.connection);
  if (place.connection.get() == event.connection) {
    place.connection.reset();
    place.lost = true;
  } else {
    const std::size_t erased = std::erase_if(
        place.replaced, [&](const auto& old) { return old.get() == event.connection; });
    PHUB_CHECK(erased == 1, "job={} rank={} core={}", job.name(), rank.value, core.value);
  }
  std::erase_if(place.staging_in_use,
                [&](const auto& in_use) { return in_use.first == event.connection; });
  LogInfo("event=lane_closed tenant={} job=\"{}\" rank={} core={} lane=\"{}\" reason=\"{}\"",
          job.account.tenant, job.name(), rank.value, core.value, place.description,
          place.loss);
  CheckPresence(job, rank);
}

void Control::State::HandleEvent(CoreIndex core, const Event& event) {
  const auto owner = shard_owners.find(event.shard);
  PHUB_CHECK(owner != shard_owners.end() && owner->second.core == core, "core={} event={}",
             core.value, static_cast<int>(event.kind));
  Job& job = *owner->second.job;
  switch (event.kind) {
    case Event::Kind::kFault:
      if (!job.running() || job.diagnosis) return;  // the first cause stands
      if (event.source.is_rack()) return FailOverPeerFault(job, core, event);
      if (event.code != FaultCode::kLaneLost) {
        counters.Add(ControlCounter::core_faults);
        return FailOverCoreFault(job, core, event);
      }
      counters.Add(ControlCounter::lanes_lost);
      {
        Diagnosis diagnosis;
        diagnosis.cause = Diagnosis::Cause::kLaneLost;
        diagnosis.rank = event.source.rank();
        diagnosis.core = core;
        diagnosis.loss = DescribeLoss(event.error, event.protocol_error, event.connection);
        return BeginDiagnosis(job, std::move(diagnosis));
      }
    case Event::Kind::kLaneClosed:
      return event.source.is_rack() ? HandlePeerLaneClosed(job, core, event)
                                    : HandleLaneClosed(job, core, event);
    case Event::Kind::kStallsReported: return HandleStallsReported(job, core, event);
    case Event::Kind::kVersionsReported: return HandleVersionsReported(job, core, event);
    case Event::Kind::kSnapshotTaken: return HandleSnapshotTaken(job, core, event);
    case Event::Kind::kNonFinite: return NoteNonFinite(job, event);
    case Event::Kind::kJobEnded:
      if (++job.cores_ended == links.size()) Release(job);
      return;
    case Event::Kind::kNone: break;
  }
  PHUB_CHECK(false, "event kind={}", static_cast<int>(event.kind));
}

// Released jobs are remembered once nobody holds memory of theirs, and the oldest forgotten.
void Control::State::ReapReleased() {
  for (auto job = jobs.begin(); job != jobs.end();) {
    const auto is_done = [](const DoneFlag& each) { return each->load(); };
    if (!(*job)->released() || !std::ranges::all_of((*job)->let_go, is_done)) {
      ++job;
      continue;
    }
    CloseAccount(**job);
    ended.push_back(std::move(*job));
    job = jobs.erase(job);
  }
  while (ended.size() > options.ended_jobs_max) {
    for (const Member& member : ended.front()->members) ForgetSessions(member);
    ended.pop_front();
  }
}

void Control::State::Poll() {
  const TimeNs now = clock.Now();
  if (wake_at < now && now - wake_at > options.liveness_timeout / kLatenessFraction) {
    ForgiveSilence(now - wake_at);
  }
  for (const auto& job : jobs) NoteSnapshotAcknowledged(*job);
  for (std::size_t core = 0; core < links.size(); ++core) {
    links[core].Flush();
    Event event;
    while (links[core].TakeEvent(event)) HandleEvent(CoreAt(core), event);
  }
  PollRacks(now);
  CheckLiveness(now);
  for (const auto& job : jobs) {
    if (job->released()) continue;
    if (job->running()) HandOutBatches(*job);
    AnswerAcknowledged(*job);
    CheckQueries(*job, now);
    CheckVersionQueries(*job, now);
    AdvanceSnapshot(*job, now);
    AdvanceLoad(*job, now);
    CheckWaiting(*job, now);
    AdvanceDiagnosis(*job, now);
    CheckAbandoned(*job, now);
    if (draining && now >= drain_deadline && job->running()) {
      Fail(*job, MakeDrainFault(*job));
    }
    if (!job->running() && !job->end_commands_sent && now >= job->end_commands_at) {
      SendEndCommands(*job);
    }
  }
  CheckLeases(now);  // which begin when a join is answered
  ReapReleased();
  polled_at = now;
  wake_at = kNever;
  NoteTimers();
}

TimeNs Control::State::NextTimer(const Job& job) const {
  TimeNs next = kNever;
  for (const StallQuery& query : job.queries) {
    if (query.done) next = std::min(next, query.deadline);
  }
  for (const VersionQuery& query : job.version_queries) {
    if (query.done) next = std::min(next, query.deadline);
  }
  if (!job.running()) {
    return job.end_commands_sent ? next : std::min(next, job.end_commands_at);
  }
  if (job.diagnosis) {
    const TimeNs grace = job.diagnosis->stream_grace;
    next = std::min(next, job.diagnosis->deadline);
    // Once the grace is over and only reports are awaited, it is no timer any more.
    return job.diagnosis->reported ? std::min(next, grace) : next;
  }
  for (const Member& member : job.members) {
    if (!member.present()) continue;
    if (!member.silent) next = std::min(next, member.last_heard + options.liveness_timeout);
    if (member.state == Member::State::kLost) next = std::min(next, member.awaited_until);
  }
  next = std::min(next, NextLease(job));
  if (job.nobody_since != 0) next = std::min(next, job.nobody_since + options.abandoned_timeout);
  if (draining) next = std::min(next, drain_deadline);
  if (job.snapshot) next = std::min(next, job.snapshot->deadline);
  if (job.arrival) next = std::min(next, job.arrival->deadline);
  return next;
}

TimeNs Control::State::NextTimer() const {
  TimeNs next = kNever;
  for (const auto& job : jobs) next = std::min(next, NextTimer(*job));
  return next;
}

TimeNs Control::State::NoteTimers() {
  const TimeNs timer = std::min(NextTimer(), NextRackTimer());
  // Of what a call brought, a timer may be over already; until now nobody had to wake up for it.
  wake_at = std::min(wake_at, std::max(timer, clock.Now()));
  return timer;
}

TimeNs Control::State::NextDeadline() {
  const auto waits = [](const auto& job) {
    const bool snapshot =
        job->snapshot != nullptr && job->snapshot->state != SnapshotRun::State::kTaking;
    return !job->pending.empty() || snapshot || !job->replaced_states.empty();
  };
  const auto is_behind = [](const CoreLink& link) { return link.backlog() > 0; };
  const TimeNs timer = NoteTimers();
  if (std::none_of(jobs.begin(), jobs.end(), waits) &&
      std::none_of(links.begin(), links.end(), is_behind)) {
    return timer;
  }
  return std::min(timer, polled_at + kAcknowledgementPollInterval);
}

}  // namespace phub::server
