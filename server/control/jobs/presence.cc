#include "server/control/jobs/presence.h"

#include <algorithm>

#include "server/control/on_control.h"

namespace phub::server {
namespace {

// Why the rank is lost; empty if it is not.
std::string AbsenceOf(const Member& member) {
  if (member.session_id.empty()) return "the process that was to replace it gave up";
  if (member.silent) return "its heartbeats stopped";
  if (!member.lane_silence.empty()) return fmt::format("it {}", member.lane_silence);
  for (std::size_t core = 0; core < member.lanes.size(); ++core) {
    const LanePlace& place = member.lanes[core];
    if (place.lost) return fmt::format("its lane to core {} was lost ({})", core, place.loss);
  }
  return {};
}

v1::SessionEvent AwaitedEvent(const Job& job, Rank rank, TimeNs now) {
  const Member& member = job.members[rank.value];
  v1::SessionEvent event;
  v1::RankAwaited& awaited = *event.mutable_awaited();
  awaited.set_rank(rank.value + job.config.rank_base);
  awaited.set_host(member.host);
  awaited.set_deadline_ns(std::max<DurationNs>(0, member.awaited_until - now));
  return event;
}

void TellOthers(const Job& job, Rank rank, const v1::SessionEvent& event) {
  for (std::uint32_t other = 0; other < job.members.size(); ++other) {
    if (other != rank.value && job.members[other].sink) job.members[other].sink->Send(event);
  }
}

}  // namespace

void Presence::CheckPresence(Job& job, Rank rank) {
  PHUB_ON_CONTROL();
  Member& member = job.members[rank.value];
  if (!job.running() || job.settings.on_loss != LossPolicy::kWait || !member.present()) return;
  std::string absence = AbsenceOf(member);
  if (absence.empty()) {
    if (member.state == Member::State::kLost) EndAbsence(job, rank, /*restarted=*/false);
    return;
  }
  member.absence = std::move(absence);
  if (member.state == Member::State::kLive) BeginAbsence(job, rank);
}

void Presence::BeginAbsence(Job& job, Rank rank) {
  PHUB_ON_CONTROL();
  Member& member = job.members[rank.value];
  member.state = Member::State::kLost;
  member.lost_since = context_.clock.Now();
  member.awaited_until = member.lost_since + job.settings.wait_timeout;
  context_.counters.Add(ControlCounter::ranks_lost);
  context_.log.Warning(
      "event=rank_lost tenant={} job=\"{}\" rank={} host=\"{}\" reason=\"{}\" wait_ns={}",
      job.account.tenant, job.name(), rank.value, member.host, member.absence,
      job.settings.wait_timeout);
  TellOthers(job, rank, AwaitedEvent(job, rank, member.lost_since));
  listener_.OnAbsence(job, rank);
}

// The rank has returned or left, so the job does not wait for it any more.
void Presence::EndAbsence(Job& job, Rank rank, bool restarted) {
  PHUB_ON_CONTROL();
  Member& member = job.members[rank.value];
  member.state = Member::State::kLive;
  context_.log.Info(
      "event=rank_returned tenant={} job=\"{}\" rank={} host=\"{}\" gone_ns={} restarted={}",
      job.account.tenant, job.name(), rank.value, member.host,
      context_.clock.Now() - member.lost_since, restarted);
  context_.counters.Add(restarted ? ControlCounter::ranks_restarted
                                  : ControlCounter::ranks_returned);
  v1::SessionEvent event;
  event.mutable_returned()->set_rank(rank.value + job.config.rank_base);
  event.mutable_returned()->set_restarted(restarted);
  TellOthers(job, rank, event);
  listener_.OnReturn(job, rank, restarted);
}

void Presence::ExtendAbsences(Job& job, TimeNs began) {
  PHUB_ON_CONTROL();
  const TimeNs now = context_.clock.Now();
  for (std::uint32_t rank = 0; rank < job.members.size() && job.running(); ++rank) {
    Member& member = job.members[rank];
    if (member.state != Member::State::kLost) continue;
    member.awaited_until += std::min(now - std::max(began, member.lost_since), kOutageMax);
    listener_.OnAbsence(job, Rank{rank});
  }
  if (job.running()) SendAwaitedToAll(job, 0);
}

void Presence::SendAwaitedToAll(const Job& job, std::uint32_t first) {
  for (std::uint32_t to = first; to < job.members.size(); ++to) {
    if (!job.members[to].sink) continue;
    if (context_.turns.has_later() && context_.turns.units() >= context_.options.turn.ranks) {
      context_.turns.RunLater(job.account.tenant,
                              [this, to, incarnation = job.account.incarnation] {
                                const Job* const found = jobs_.FindIncarnation(incarnation);
                                if (found != nullptr && found->running())
                                  SendAwaitedToAll(*found, to);
                              });
      return;
    }
    SendAwaited(job, Rank{to});
  }
}

void Presence::SendAwaited(const Job& job, Rank to) {
  PHUB_ON_CONTROL();
  Continue(
      job,
      {.incarnation = job.account.incarnation, .to = to, .stream = job.members[to.value].stream});
}

void Presence::Continue(const Job& job, Sending sending) {
  if (SendMore(job, sending)) return;
  context_.turns.RunLater(job.account.tenant, [this, sending] {
    const Job* const found = jobs_.FindIncarnation(sending.incarnation);
    if (found == nullptr) return;
    const Member& member = found->members[sending.to.value];
    if (member.sink && member.stream == sending.stream) Continue(*found, sending);
  });
}

bool Presence::SendMore(const Job& job, Sending& sending) {
  EventSink& sink = *job.members[sending.to.value].sink;
  const TimeNs now = context_.clock.Now();
  bool begun = false;  // work was done in this turn
  // Takes a unit of the turn's budget; false: the budget is used up.
  const auto take = [&] {
    const bool in_turns = context_.turns.has_later();
    if (in_turns && begun && context_.turns.units() >= context_.options.turn.ranks) return false;
    begun = true;
    context_.turns.Add(1);
    return true;
  };
  for (; sending.own < job.members.size(); ++sending.own) {
    const Rank rank{sending.own};
    if (rank == sending.to || job.members[rank.value].state != Member::State::kLost) continue;
    if (!take()) return false;
    sink.Send(AwaitedEvent(job, rank, now));
  }
  while (const auto lost = listener_.FirstAwaitedFrom(job, sending.elsewhere)) {
    if (!take()) return false;
    sink.Send(*lost);
    sending.elsewhere = lost->awaited().rank() + 1;
  }
  return true;
}

void Presence::CheckWaiting(Job& job, TimeNs now) {
  PHUB_ON_CONTROL();
  for (std::uint32_t rank = 0; rank < job.members.size(); ++rank) {
    if (!job.running() || job.diagnosis) return;
    CheckPresence(job, Rank{rank});
    const Member& member = job.members[rank];
    if (member.state != Member::State::kLost || now < member.awaited_until) continue;
    if (context_.InOutage(now)) continue;
    context_.counters.Add(ControlCounter::ranks_awaited_in_vain);
    Diagnosis diagnosis;
    diagnosis.cause = Diagnosis::Cause::kAwaitedInVain;
    diagnosis.rank = Rank{rank};
    diagnoses_.BeginDiagnosis(job, std::move(diagnosis));
  }
}

}  // namespace phub::server
