// Ranks that are gone and may come back (LOSS_POLICY_WAIT). A rank is lost as long as its stream is
// broken, it is silent, or a lane that it had is missing; the other ranks hear of it, and a
// deadline runs. The same process comes back by attending, being heard of, and opening its lanes
// again. With restart a new process may take the seat over by joining. In jobs that span racks each
// rack does so for its own ranks; rack_waiting.h tells the others.
#include <algorithm>

#include "common/base/log.h"
#include "server/control/racks/rack_waiting.h"
#include "server/control/state.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

constexpr std::size_t kFormerSessionsMax = 16;  // of one seat
// A worker that lives sends four heartbeats per liveness timeout, so it is never silent for half of
// one: then it may be taken for gone, if somebody else comes to take its place.
constexpr int kTakeOverFraction = 2;

// What is missing of a rank; empty: nothing.
std::string AbsenceOf(const Member& member) {
  if (member.silent) return "it fell silent";
  for (std::size_t core = 0; core < member.lanes.size(); ++core) {
    const LanePlace& place = member.lanes[core];
    if (place.lost) return fmt::format("its lane to core {} was lost ({})", core, place.loss);
  }
  if (member.stream_broke) return "its heartbeat stream broke";
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

void Control::State::CheckPresence(Job& job, Rank rank) {
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

void Control::State::BeginAbsence(Job& job, Rank rank) {
  Member& member = job.members[rank.value];
  member.state = Member::State::kLost;
  member.lost_since = clock.Now();
  member.awaited_until = member.lost_since + job.settings.wait_timeout;
  counters.Add(ControlCounter::ranks_lost);
  LogWarning("event=rank_lost tenant={} job=\"{}\" rank={} host=\"{}\" reason=\"{}\" wait_ns={}",
             job.account.tenant, job.name(), rank.value, member.host, member.absence,
             job.settings.wait_timeout);
  TellOthers(job, rank, AwaitedEvent(job, rank, member.lost_since));
  TellRacksOfAbsence(*this, job, rank);
}

// It is back, or has left: it is not awaited any more.
void Control::State::EndAbsence(Job& job, Rank rank, bool restarted) {
  Member& member = job.members[rank.value];
  member.state = Member::State::kLive;
  LogInfo("event=rank_returned tenant={} job=\"{}\" rank={} host=\"{}\" gone_ns={} restarted={}",
          job.account.tenant, job.name(), rank.value, member.host, clock.Now() - member.lost_since,
          restarted);
  counters.Add(restarted ? ControlCounter::ranks_restarted : ControlCounter::ranks_returned);
  v1::SessionEvent event;
  event.mutable_returned()->set_rank(rank.value + job.config.rank_base);
  event.mutable_returned()->set_restarted(restarted);
  TellOthers(job, rank, event);
  TellRacksOfReturn(*this, job, rank, restarted);
}

void Control::State::SendAwaited(const Job& job, Rank to, EventSink& sink) {
  for (std::uint32_t rank = 0; rank < job.members.size(); ++rank) {
    if (rank == to.value || job.members[rank].state != Member::State::kLost) continue;
    sink.Send(AwaitedEvent(job, Rank{rank}, clock.Now()));
  }
  SendLostElsewhere(job, clock.Now(), sink);
}

void Control::State::CheckWaiting(Job& job, TimeNs now) {
  for (std::uint32_t rank = 0; rank < job.members.size(); ++rank) {
    if (!job.running() || job.diagnosis) return;
    CheckPresence(job, Rank{rank});
    const Member& member = job.members[rank];
    if (member.state != Member::State::kLost || now < member.awaited_until) continue;
    counters.Add(ControlCounter::ranks_awaited_in_vain);
    Diagnosis diagnosis;
    diagnosis.cause = Diagnosis::Cause::kAwaitedInVain;
    diagnosis.rank = Rank{rank};
    BeginDiagnosis(job, std::move(diagnosis));
  }
}

// May the process that joins sit down where another one sits, or sat?
absl::Status Control::State::CheckTakeOver(const Job& job, const v1::JoinRequest& request) {
  const Member& member = job.members[request.rank()];
  const DurationNs age = clock.Now() - member.last_heard;
  const bool gone =
      member.stream_broke || member.silent || age > options.liveness_timeout / kTakeOverFraction;
  const std::string who =
      fmt::format("rank {} of job {}", request.rank() + job.config.rank_base, job.name());
  if (!gone) {
    return Refuse(ControlCounter::joins_refused_rank_held,
                  absl::AlreadyExistsError(fmt::format(
                      "{} is held by a live worker on host {}, pid {}, last heard of {} ago; give "
                      "this worker another rank or the job another name",
                      who, member.host, member.pid, FormatAge(age))));
  }
  if (job.settings.restart) return absl::OkStatus();
  if (!member.committed) return absl::OkStatus();  // nobody was in the job on this seat
  if (member.state == Member::State::kLost) {
    return Refuse(
        ControlCounter::joins_refused_rank_held,
        absl::FailedPreconditionError(fmt::format(
            "{} is lost ({} on host {}, pid {}), and only that process may come back, for another "
            "{}: a new one may take its place in jobs created with restart=true",
            who, member.absence, member.host, member.pid,
            FormatAge(member.awaited_until - clock.Now()))));
  }
  return Refuse(
      ControlCounter::joins_refused_rank_held,
      absl::AlreadyExistsError(fmt::format(
          "{} is held by a worker on host {}, pid {}, last heard of {} ago; a new process "
          "may take its place in jobs created with on_loss=wait and restart=true",
          who, member.host, member.pid, FormatAge(age))));
}

// The seat's old process is done with; a new one sits down next. If one was sure of the seat, the
// rank is awaited until the new one is (Commit).
absl::Status Control::State::TakeOver(Job& job, Rank rank) {
  Member& member = job.members[rank.value];
  if (absl::Status status = RenewRankMemory(job, rank); !status.ok()) {
    return Refuse(ControlCounter::joins_refused_capacity, status);
  }
  if (member.state == Member::State::kLive) {
    member.absence = "another process comes to take its place";
    BeginAbsence(job, rank);
  }
  const absl::Status over = absl::AbortedError(
      fmt::format("another process takes the place of {} in job {}: this one is done with",
                  DescribeRank(job, rank), job.name()));
  LogWarning("event=rank_taken_over tenant={} job=\"{}\" rank={} host=\"{}\" pid={}",
             job.account.tenant, job.name(), rank.value, member.host, member.pid);
  if (member.sink) std::exchange(member.sink, nullptr)->End(over);
  member.former_sessions.push_back(member.session_id);
  if (member.former_sessions.size() > kFormerSessionsMax) {
    sessions.erase(member.former_sessions.front());
    member.former_sessions.erase(member.former_sessions.begin());
  }
  // What the old process called counts; the new one will call the same.
  for (auto& [sequence, answer] : member.barriers) {
    std::exchange(answer, [](const absl::Status&, const v1::BarrierResponse&) {})(over, {});
  }
  if (job.arrival && job.arrival->rank == rank) FailArrival(job, over);
  for (LanePlace& place : member.lanes) {
    place.nonce.Drop();
    place.lost = false;
    if (place.connection) place.replaced.push_back(std::move(place.connection));
  }
  member.stream = 0;
  member.stream_broke = false;
  member.silent = false;
  member.next_batch = 0;
  if (member.committed) ++member.restarts;
  return absl::OkStatus();
}

// A process that came to take a seat over does not make sure of it: the rank is awaited on.
void Control::State::LoseSeat(Job& job, Rank rank, const absl::Status& why) {
  Member& member = job.members[rank.value];
  LogWarning("event=seat_lost tenant={} job=\"{}\" rank={} host=\"{}\" reason=\"{}\"",
             job.account.tenant, job.name(), rank.value, member.host, std::string(why.message()));
  sessions.erase(member.session_id);
  member.session_id.clear();
  if (member.sink) std::exchange(member.sink, nullptr)->End(why);
  member.stream = 0;
  member.stream_broke = true;
  member.absence = "a process that came to take its place gave up";
  member.state = Member::State::kLost;
}

void Control::State::ForgetSessions(const Member& member) {
  sessions.erase(member.session_id);
  for (const std::string& session_id : member.former_sessions) sessions.erase(session_id);
}

absl::Status Control::State::TakenOver(const Job& job, Rank rank) const {
  const Member& member = job.members[rank.value];
  return absl::AbortedError(
      fmt::format("rank {} of job {} was taken over by a process on host {}, pid {}; this process "
                  "is done with",
                  rank.value + job.config.rank_base, job.name(), member.host, member.pid));
}

// Time in which control could not listen is not held against those who want to come back.
void Control::State::ForgiveAbsence(Member& member, DurationNs duration) {
  if (member.state == Member::State::kLost) member.awaited_until += duration;
}

std::string Control::State::DescribeAbsence(const Job& job, Rank rank) const {
  const Member& member = job.members[rank.value];
  return fmt::format("{} was lost {} ago: {}; it did not come back within wait_timeout ({})",
                     DescribeRank(job, rank), FormatAge(clock.Now() - member.lost_since),
                     member.absence, FormatAge(job.settings.wait_timeout));
}

}  // namespace phub::server
