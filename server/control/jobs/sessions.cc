#include "server/control/jobs/sessions.h"

#include <fmt/core.h>

#include <array>
#include <cstddef>

#include "common/base/check.h"
#include "server/control/jobs/job_table.h"
#include "server/control/on_control.h"

namespace phub::server {
namespace {

constexpr std::size_t kSessionIdBytes = 16;

std::string DrawSessionId(Random& random) {
  std::array<std::byte, kSessionIdBytes> bytes;
  random.Fill(bytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

void Sessions::Open(Job& job, Rank rank) {
  PHUB_ON_CONTROL();
  Member& member = job.members[rank.value];
  do {
    member.session_id = DrawSessionId(context_.random);
  } while (sessions_.contains(member.session_id));
  sessions_[member.session_id] = {&job, rank};
}

const Seating* Sessions::Find(std::string_view session_id) const {
  PHUB_ON_CONTROL();
  const auto found = sessions_.find(session_id);
  return found == sessions_.end() ? nullptr : &found->second;
}

absl::StatusOr<Seating> Sessions::FindSession(std::string_view session_id) {
  PHUB_ON_CONTROL();
  const Seating* const found = Find(session_id);
  if (found == nullptr) {
    context_.counters.Add(ControlCounter::sessions_unknown);
    return absl::NotFoundError(
        "this session is unknown: the daemon restarted, the job ended long ago, or the reservation "
        "expired before Commit; join again");
  }
  const Seating& seat = *found;
  if (seat.job->members[seat.rank.value].session_id != session_id) {
    return TakenOver(*seat.job, seat.rank);
  }
  return seat;
}

absl::StatusOr<Seating> Sessions::FindRunning(std::string_view session_id) {
  PHUB_ON_CONTROL();
  absl::StatusOr<Seating> seat = FindSession(session_id);
  if (!seat.ok()) return seat;
  Job& job = *seat->job;
  Member& member = job.members[seat->rank.value];
  if (job.state == Job::State::kFailed) return absl::AbortedError(job.fault.message());
  if (member.state == Member::State::kLeft) {
    return absl::FailedPreconditionError(
        fmt::format("{} has left job {}", DescribeRankBriefly(job, seat->rank), job.name()));
  }
  NoteHeard(member, context_.clock.Now());
  return seat;
}

absl::StatusOr<Seating> Sessions::FindCommitted(std::string_view session_id) {
  PHUB_ON_CONTROL();
  absl::StatusOr<Seating> seat = FindRunning(session_id);
  if (!seat.ok() || seat->job->members[seat->rank.value].state != Member::State::kReserved) {
    return seat;
  }
  context_.counters.Add(ControlCounter::calls_uncommitted);
  return absl::FailedPreconditionError(
      fmt::format("{} has not committed its place in job {} yet; call Commit first",
                  DescribeRankBriefly(*seat->job, seat->rank), seat->job->name()));
}

void Sessions::ForgetSessions(const Member& member) {
  PHUB_ON_CONTROL();
  sessions_.erase(member.session_id);
  for (const std::string& session_id : member.former_sessions) sessions_.erase(session_id);
}

absl::Status Sessions::TakenOver(const Job& job, Rank rank) const {
  PHUB_ON_CONTROL();
  const Member& member = job.members[rank.value];
  return absl::AbortedError(
      fmt::format("rank {} of job {} was taken over by a process on host {}, pid {}; this process "
                  "must exit",
                  rank.value + job.config.rank_base, job.name(), member.host, member.pid));
}

void Sessions::CheckInvariants(const JobTable& jobs) const {
  PHUB_ON_CONTROL();
  std::size_t expected = 0;
  const auto check = [&](const Job& job) {
    for (std::uint32_t rank = 0; rank < job.members.size(); ++rank) {
      const Member& member = job.members[rank];
      const auto check_one = [&](const std::string& session_id) {
        const Seating* const seat = Find(session_id);
        PHUB_CHECK(seat != nullptr && seat->job == &job && seat->rank == Rank{rank},
                   "N1 job={} rank={}", job.name(), rank);
        ++expected;
      };
      if (!member.session_id.empty()) check_one(member.session_id);
      for (const std::string& session_id : member.former_sessions) check_one(session_id);
    }
  };
  for (const auto& job : jobs.jobs()) check(*job);
  for (const auto& job : jobs.ended()) check(*job);
  PHUB_CHECK(expected == sessions_.size(), "N2 sessions={} of_members={}", sessions_.size(),
             expected);
}

}  // namespace phub::server
