#include "server/control/ranks/seats.h"

#include <algorithm>
#include <utility>

#include "server/control/daemon_clock.h"
#include "server/control/on_control.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

constexpr std::size_t kFormerSessionsMax = 16;  // per seat
// A live worker sends four heartbeats per liveness timeout. If it is silent for half of the
// timeout, another process may take its place.
constexpr int kTakeOverFraction = 2;

// True if every lane that the rank had to this daemon has closed. Sockets end with their process.
bool HasLostEveryLane(const Member& member) {
  return std::ranges::all_of(member.lanes, [](const LanePlace& place) { return place.lost; });
}

// True if the seat's process is dead or unreachable, as far as this daemon can know. The end of a
// stream alone shows nothing: control's connections break while the process trains on its lanes.
bool IsGone(const Member& member, DurationNs age, DurationNs liveness_timeout) {
  if (member.session_id.empty()) return true;  // no process has the seat
  return member.silent || !member.lane_silence.empty() ||
         age > liveness_timeout / kTakeOverFraction ||
         (member.sink == nullptr && HasLostEveryLane(member));
}

// The longest time to open a job in all racks: up to two liveness timeouts until the racks are
// asked, and up to five until they have opened it. While a worker waits for the next daemon to open
// its part of the job, it sends no heartbeats to the daemons that it has already joined.
constexpr DurationNs kOpeningOfAPlane = 7;  // in liveness timeouts

DurationNs LeaseOf(const ControlOptions& options, const Job& job, const Member& member) {
  const DurationNs further = job.rack_run == nullptr ? 0 : options.daemons_in_rack() - 1;
  const DurationNs survey = options.topology_is_measured ? kSurveyPatience : 0;
  return PatienceWith(member, options.liveness_timeout) +
         further * (options.liveness_timeout * kOpeningOfAPlane + survey);
}

}  // namespace

void Seats::Commit(const v1::CommitRequest& request, Answer<v1::CommitResponse> answer) {
  PHUB_ON_CONTROL();
  const absl::StatusOr<Seating> seat = sessions_.FindRunning(request.session_id());
  if (!seat.ok()) return answer(seat.status(), {});
  Job& job = *seat->job;
  Member& member = job.members[seat->rank.value];
  if (member.state == Member::State::kReserved) {
    member.state = Member::State::kLive;
    if (std::exchange(member.committed, true))
      presence_.EndAbsence(job, seat->rank, /*restarted=*/true);
    job.nobody_since = 0;
    context_.counters.Add(ControlCounter::commits);
    context_.log.Info("event=rank_committed tenant={} job=\"{}\" rank={}", job.account.tenant,
                      job.name(), seat->rank.value);
  }
  v1::CommitResponse response;
  *response.mutable_clock() = DescribeClock(context_);
  answer(absl::OkStatus(), std::move(response));
}

void Seats::FreeSeat(Job& job, Rank rank, const absl::Status& why) {
  Member& member = job.members[rank.value];
  if (member.committed) return LoseSeat(job, rank, why);
  context_.log.Info("event=seat_freed tenant={} job=\"{}\" rank={} host=\"{}\" reason=\"{}\"",
                    job.account.tenant, job.name(), rank.value, member.host,
                    std::string(why.message()));
  sessions_.ForgetSessions(member);
  if (member.sink) member.sink->End(why);
  rank_memories_.DropRankMemory(job, member);
  Member empty;
  empty.lanes = std::move(member.lanes);
  member = std::move(empty);
  const auto is = [&](Member::State state) {
    return [state](const Member& each) { return each.state == state; };
  };
  if (std::all_of(job.members.begin(), job.members.end(), is(Member::State::kAwaited))) {
    if (job.rack_run == nullptr) {
      job.unused = true;
      return ending_.EndInOrder(job);
    }
    job.nobody_since = context_.clock.Now();  // other racks may have ranks in the job
    return;
  }
  if (std::none_of(job.members.begin(), job.members.end(), is(Member::State::kLive)) &&
      std::none_of(job.members.begin(), job.members.end(), is(Member::State::kLost)) &&
      std::none_of(job.members.begin(), job.members.end(), is(Member::State::kReserved))) {
    job.nobody_since = context_.clock.Now();
  }
}

void Seats::CheckLeases(TimeNs now) {
  PHUB_ON_CONTROL();
  for (const auto& job : jobs_.jobs()) {
    // The first ranks get no answer, and cannot commit, before the core loops and other racks have
    // the job.
    if (!job->running() || job->diagnosis || !context_.cores.Acknowledged(job->add_job_tickets))
      continue;
    if (!peer_racks_.HaveKeys(*job, 0)) continue;
    for (std::uint32_t rank = 0; rank < job->members.size() && job->running(); ++rank) {
      const Member& member = job->members[rank];
      if (member.state != Member::State::kReserved ||
          now - member.last_heard < LeaseOf(context_.options, *job, member)) {
        continue;
      }
      context_.counters.Add(ControlCounter::reservations_lapsed);
      const std::string lease = FormatAge(LeaseOf(context_.options, *job, member));
      FreeSeat(*job, Rank{rank},
               absl::DeadlineExceededError(fmt::format(
                   "the reservation of rank {} in job {} expired: it was not committed within {}",
                   rank, job->name(), lease)));
      if (job->diagnosis) break;
    }
  }
}

TimeNs Seats::NextLease(const Job& job) const {
  PHUB_ON_CONTROL();
  TimeNs next = kNever;
  if (!context_.cores.Acknowledged(job.add_job_tickets) || !peer_racks_.HaveKeys(job, 0))
    return next;
  for (const Member& member : job.members) {
    if (member.state != Member::State::kReserved) continue;
    next = std::min(next, member.last_heard + LeaseOf(context_.options, job, member));
  }
  return next;
}

void Seats::Seat(Job& job, const v1::JoinRequest& request, std::string_view peer_address) {
  PHUB_ON_CONTROL();
  const Rank rank{request.rank()};
  Member& member = job.members[rank.value];
  member.state = Member::State::kReserved;
  member.address = std::string(peer_address);
  member.host = request.host().empty() ? "host unknown" : request.host();
  member.pid = request.pid();
  member.answers_dumps = request.dumps();
  member.opens_lanes = request.keeps_lanes();
  NoteHeard(member, context_.clock.Now());
  sessions_.Open(job, rank);
  job.nobody_since = 0;
  context_.counters.Add(ControlCounter::joins);
  context_.log.Info("event=rank_joined tenant={} job=\"{}\" rank={} host=\"{}\" pid={} address={}",
                    job.account.tenant, job.name(), rank.value, member.host, member.pid,
                    member.address);
}

absl::Status Seats::CheckTakeOver(const Job& job, const v1::JoinRequest& request) {
  PHUB_ON_CONTROL();
  const Member& member = job.members[request.rank()];
  const DurationNs age = context_.clock.Now() - member.last_heard;
  const bool gone = IsGone(member, age, context_.options.liveness_timeout);
  const std::string who =
      fmt::format("rank {} of job {}", request.rank() + job.config.rank_base, job.name());
  if (!gone) {
    return context_.Refuse(
        ControlCounter::joins_refused_rank_held,
        absl::AlreadyExistsError(fmt::format(
            "{} is held by a live worker on host {}, pid {} (last contact {} ago); use a "
            "different rank or a different job name",
            who, member.host, member.pid, FormatAge(age))));
  }
  if (job.settings.restart) return absl::OkStatus();
  if (!member.committed) return absl::OkStatus();  // no process used this seat in the job
  if (member.state == Member::State::kLost) {
    return context_.Refuse(
        ControlCounter::joins_refused_rank_held,
        absl::FailedPreconditionError(fmt::format(
            "{} is lost ({}; host {}, pid {}); only the same process can return, within {}; a new "
            "process can replace it only in jobs created with restart=true",
            who, member.absence, member.host, member.pid,
            FormatAge(member.awaited_until - context_.clock.Now()))));
  }
  return context_.Refuse(
      ControlCounter::joins_refused_rank_held,
      absl::AlreadyExistsError(fmt::format(
          "{} is held by a worker on host {}, pid {} (last contact {} ago); a new process can "
          "replace it only in jobs created with on_loss=wait and restart=true",
          who, member.host, member.pid, FormatAge(age))));
}

absl::Status Seats::TakeOver(Job& job, Rank rank) {
  PHUB_ON_CONTROL();
  Member& member = job.members[rank.value];
  if (absl::Status status = rank_memories_.RenewRankMemory(job, rank); !status.ok()) {
    return context_.Refuse(ControlCounter::joins_refused_capacity, status);
  }
  if (member.state == Member::State::kLive) {
    member.absence = "another process is taking its place";
    presence_.BeginAbsence(job, rank);
  }
  const absl::Status over = absl::AbortedError(
      fmt::format("another process took over {} of job {}; this process must exit",
                  DescribeRank(job, rank), job.name()));
  context_.log.Warning("event=rank_taken_over tenant={} job=\"{}\" rank={} host=\"{}\" pid={}",
                       job.account.tenant, job.name(), rank.value, member.host, member.pid);
  if (member.sink) std::exchange(member.sink, nullptr)->End(over);
  // A process that did not commit has lost its session already.
  if (!member.session_id.empty()) member.former_sessions.push_back(member.session_id);
  if (member.former_sessions.size() > kFormerSessionsMax) {
    sessions_.Forget(member.former_sessions.front());
    member.former_sessions.erase(member.former_sessions.begin());
  }
  // Barriers that the old process reached stay reached; the new process will call them again.
  for (auto& [number, pending] : member.barriers) {
    std::exchange(pending.answer, [](const absl::Status&, const v1::BarrierResponse&) {})(over, {});
  }
  for (JobObserver* each : jobs_.observers()) each->OnTakenOver(job, rank, over);
  for (LanePlace& place : member.lanes) {
    place.nonce.Drop();
    place.lost = false;
    if (place.connection) place.replaced.push_back(std::move(place.connection));
  }
  member.stream = 0;
  member.stream_ended_at = 0;
  member.silent = false;
  member.lanes_kept = false;
  member.lane_silence.clear();
  member.next_batch = 0;
  if (member.committed) ++member.restarts;
  return absl::OkStatus();
}

// The process that took over the seat did not commit it, so the rank is still lost.
void Seats::LoseSeat(Job& job, Rank rank, const absl::Status& why) {
  Member& member = job.members[rank.value];
  context_.log.Warning("event=seat_lost tenant={} job=\"{}\" rank={} host=\"{}\" reason=\"{}\"",
                       job.account.tenant, job.name(), rank.value, member.host,
                       std::string(why.message()));
  sessions_.Forget(member.session_id);
  member.session_id.clear();
  if (member.sink) std::exchange(member.sink, nullptr)->End(why);
  member.stream = 0;
  member.state = Member::State::kLost;
  presence_.CheckPresence(job, rank);  // says why
}

// A rank has offered its verdict. ABORTED, with the fault that every rank gets, if that is another
// one. It may not be known yet: see Job::unannounced.
void Seats::AnswerVerdict(Job& job, const std::string& verdict,
                          const Answer<v1::LeaveResponse>& answer) {
  if (!job.unannounced) return answer(absl::OkStatus(), {});
  job.on_announced.push_back([&job, verdict, answer] {
    const bool same = job.fault.message() == verdict;
    answer(same ? absl::OkStatus() : absl::AbortedError(job.fault.message()), {});
  });
}

void Seats::Leave(const v1::LeaveRequest& request, Answer<v1::LeaveResponse> answer) {
  PHUB_ON_CONTROL();
  const absl::StatusOr<Seating> known = sessions_.FindSession(request.session_id());
  if (!known.ok()) return answer(known.status(), {});
  if (known->job->members[known->rank.value].state == Member::State::kLeft) {
    return answer(absl::OkStatus(), {});  // a retry
  }
  if (!request.verdict().empty() && known->job->unannounced)
    return AnswerVerdict(*known->job, request.verdict(), answer);
  const absl::StatusOr<Seating> seat = sessions_.FindRunning(request.session_id());
  if (!seat.ok()) return answer(seat.status(), {});
  Job& job = *seat->job;
  Member& member = job.members[seat->rank.value];
  // Otherwise every rank that tries again would find this run, which can never complete.
  const bool ends_run =
      request.run_is_over() && job.rack_run != nullptr && !request.verdict().empty();
  if (member.state == Member::State::kReserved && !ends_run) {
    context_.counters.Add(ControlCounter::reservations_returned);
    FreeSeat(job, seat->rank, absl::CancelledError("the worker returned its reservation"));
    return answer(absl::OkStatus(), {});
  }
  if (!request.verdict().empty()) {
    diagnoses_.EndByVerdict(job, seat->rank, request.verdict());
    return AnswerVerdict(job, request.verdict(), answer);
  }
  barriers_.RefuseBarriersWithout(job, DescribeRank(job, seat->rank));
  peer_racks_.TellOfDeparture(job, seat->rank);
  if (member.state == Member::State::kLost)
    presence_.EndAbsence(job, seat->rank, /*restarted=*/false);
  member.state = Member::State::kLeft;
  context_.counters.Add(ControlCounter::leaves);
  context_.log.Info("event=rank_left tenant={} job=\"{}\" rank={} host=\"{}\"", job.account.tenant,
                    job.name(), seat->rank.value, member.host);
  std::vector<Ticket> tickets;
  for (std::size_t core = 0; core < context_.cores.size(); ++core) {
    tickets.push_back(context_.cores[core].Send(
        {.kind = Command::Kind::kRankLeft, .rank = seat->rank, .shard = job.shards[core].get()}));
  }
  const auto is_present = [](const Member& each) { return each.present(); };
  if (std::none_of(job.members.begin(), job.members.end(), is_present)) {
    job.nobody_since = context_.clock.Now();
  }
  job.pending.push_back({std::move(tickets), [answer] { answer(absl::OkStatus(), {}); },
                         [answer](const absl::Status& status) { answer(status, {}); }});
  pending_calls_.AnswerAcknowledged(job);
}

}  // namespace phub::server
