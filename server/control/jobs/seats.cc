#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "server/control/racks/rack_survey.h"
#include "server/control/state.h"
#include "server/control/text.h"

namespace phub::server {

// A worker joins every daemon of the rack, then commits at each: so that a rank that one daemon
// refuses holds nothing at the others. In between its place is a lease, kept up by being heard of.

namespace {

// As long as racks may take to open a job, two until they are asked and five until they have: a
// worker is heard of by one daemon while it waits for the next ones' parts to be opened everywhere.
constexpr DurationNs kOpeningOfAPlane = 7;  // in liveness timeouts

DurationNs LeaseOf(const ControlOptions& options, const Job& job) {
  const DurationNs further = job.rack_run == nullptr ? 0 : options.daemons_in_rack() - 1;
  const DurationNs survey = options.topology_is_measured ? kSurveyPatience : 0;
  return options.liveness_timeout +
         further * (options.liveness_timeout * kOpeningOfAPlane + survey);
}

}  // namespace

absl::StatusOr<Control::State::Seating> Control::State::FindCommitted(std::string_view session_id) {
  absl::StatusOr<Seating> seat = FindRunning(session_id);
  if (!seat.ok() || seat->job->members[seat->rank.value].state != Member::State::kReserved) {
    return seat;
  }
  counters.Add(ControlCounter::calls_uncommitted);
  return absl::FailedPreconditionError(
      fmt::format("{} has not committed its place in job {} yet; call Commit first",
                  DescribeRankBriefly(*seat->job, seat->rank), seat->job->name()));
}

void Control::State::Commit(const v1::CommitRequest& request, Answer<v1::CommitResponse> answer) {
  const absl::StatusOr<Seating> seat = FindRunning(request.session_id());
  if (!seat.ok()) return answer(seat.status(), {});
  Job& job = *seat->job;
  Member& member = job.members[seat->rank.value];
  if (member.state == Member::State::kReserved) {
    member.state = Member::State::kLive;
    if (std::exchange(member.committed, true)) EndAbsence(job, seat->rank, /*restarted=*/true);
    job.nobody_since = 0;
    counters.Add(ControlCounter::commits);
    LogInfo("event=rank_committed tenant={} job=\"{}\" rank={}", job.account.tenant, job.name(),
            seat->rank.value);
  }
  answer(absl::OkStatus(), {});
}

void Control::State::FreeSeat(Job& job, Rank rank, const absl::Status& why) {
  Member& member = job.members[rank.value];
  if (member.committed) return LoseSeat(job, rank, why);
  LogInfo("event=seat_freed tenant={} job=\"{}\" rank={} host=\"{}\" reason=\"{}\"",
          job.account.tenant, job.name(), rank.value, member.host, std::string(why.message()));
  ForgetSessions(member);
  if (member.sink) member.sink->End(why);
  DropRankMemory(job, member);
  Member empty;
  empty.lanes = std::move(member.lanes);
  member = std::move(empty);
  const auto is = [&](Member::State state) {
    return [state](const Member& each) { return each.state == state; };
  };
  if (std::all_of(job.members.begin(), job.members.end(), is(Member::State::kAwaited))) {
    if (job.rack_run == nullptr) return EndInOrder(job);
    job.nobody_since = clock.Now();  // other racks may have ranks in it
    return;
  }
  if (std::none_of(job.members.begin(), job.members.end(), is(Member::State::kLive)) &&
      std::none_of(job.members.begin(), job.members.end(), is(Member::State::kLost)) &&
      std::none_of(job.members.begin(), job.members.end(), is(Member::State::kReserved))) {
    job.nobody_since = clock.Now();
  }
}

void Control::State::CheckLeases(TimeNs now) {
  for (const auto& job : jobs) {
    // Until the core loops, and other racks, have the job, its first ranks have no answer that they
    // could act on.
    if (!job->running() || job->diagnosis || !Acknowledged(job->add_job_tickets)) continue;
    if (!RacksHave(*job, 0)) continue;
    for (std::uint32_t rank = 0; rank < job->members.size() && job->running(); ++rank) {
      const Member& member = job->members[rank];
      if (member.state != Member::State::kReserved ||
          now - member.last_heard < LeaseOf(options, *job)) {
        continue;
      }
      counters.Add(ControlCounter::reservations_lapsed);
      FreeSeat(*job, Rank{rank},
               absl::DeadlineExceededError(fmt::format(
                   "rank {}'s reservation in job {} lapsed: it was not committed within {}", rank,
                   job->name(), FormatAge(LeaseOf(options, *job)))));
      if (job->diagnosis) break;
    }
  }
}

TimeNs Control::State::NextLease(const Job& job) const {
  TimeNs next = kNever;
  if (!Acknowledged(job.add_job_tickets) || !RacksHave(job, 0)) return next;
  for (const Member& member : job.members) {
    if (member.state != Member::State::kReserved) continue;
    next = std::min(next, member.last_heard + LeaseOf(options, job));
  }
  return next;
}

}  // namespace phub::server
