#include "server/control/admin/stall_reports.h"

#include <algorithm>
#include <map>

#include "server/control/racks/rack_waiting.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

constexpr std::size_t kQueriesPerJobMax = 16;  // concurrent queries from administrators

// One iteration of one key, merged over all cores.
struct Merged {
  std::uint32_t chunks_waiting = 0;
  TimeNs since = 0;
  std::map<std::uint32_t, CoreIndex> missing;  // rank -> the first core that waits for it
};

}  // namespace

std::string StallReports::DescribeLane(const Member& member, CoreIndex core) const {
  if (member.state == Member::State::kAwaited) return "none: the rank has not joined";
  if (member.lanes.empty()) return "none: the job has ended";
  const LanePlace& place = member.lanes[core.value];
  if (place.connection != nullptr) return place.description;
  if (place.description.empty()) return "none: not opened yet";
  return fmt::format("none: {} was lost ({})", place.description, place.loss);
}

void StallReports::DescribeStalls(const Job& job, const StallQuery& query,
                                  DurationNs waiting_for_min,
                                  v1::ListStallsResponse& response) const {
  const TimeNs now = context_.clock.Now();
  std::map<std::pair<KeyIndex, Iteration>, Merged> merged;
  for (std::size_t core = 0; core < query.reports.size(); ++core) {
    const StallReport& report = *query.reports[core];
    for (std::uint32_t i = 0; i < report.count; ++i) {
      const StallReport::Entry& entry = report.entries[i];
      Merged& stall = merged[{entry.key, entry.iteration}];
      stall.since = stall.chunks_waiting == 0 ? entry.since : std::min(stall.since, entry.since);
      stall.chunks_waiting += entry.chunks_waiting;
      for (std::uint32_t rank = 0; rank < job.members.size(); ++rank) {
        if (entry.missing[rank / 64] >> (rank % 64) & 1) {
          stall.missing.try_emplace(rank, CoreAt(core));
        }
      }
    }
  }
  for (const auto& [round, stall] : merged) {
    if (now - stall.since < waiting_for_min) continue;
    v1::Stall& described = *response.add_stalls();
    described.set_key(DescribeKey(job, round.first));
    described.set_iteration(round.second.value);
    described.set_chunks_waiting(stall.chunks_waiting);
    described.set_since_ns(now - stall.since);
    for (const auto& [rank, core] : stall.missing) {
      const Member& member = job.members[rank];
      v1::StalledRank& waited_for = *described.add_waiting_for();
      waited_for.set_rank(rank + job.config.rank_base);
      waited_for.set_host(member.host);
      waited_for.set_state(ToString(member.state));
      if (member.last_heard != 0) waited_for.set_last_heartbeat_age_ns(now - member.last_heard);
      waited_for.set_lane(DescribeLane(member, core));
      if (member.state == Member::State::kLost) {
        waited_for.set_awaited_for_ns(std::max<DurationNs>(0, member.awaited_until - now));
      }
    }
  }
  for (const auto& report : query.reports) {
    if (!report->across || now - report->across->since < waiting_for_min) continue;
    v1::Stall& described = *response.add_stalls();
    described.set_key(DescribeKey(job, report->across->key));
    described.set_iteration(report->across->iteration.value);
    described.set_since_ns(now - report->across->since);
    described.set_waits_for_racks(true);
  }
  DescribeLostElsewhere(job, now, response);
  std::stable_sort(
      response.mutable_stalls()->begin(), response.mutable_stalls()->end(),
      [](const v1::Stall& a, const v1::Stall& b) { return a.since_ns() > b.since_ns(); });
}

void StallReports::ListStalls(const v1::ListStallsRequest& request,
                              Answer<v1::ListStallsResponse> answer) {
  const absl::StatusOr<const Job*> found = jobs_.FindJob(request.tenant(), request.job());
  if (!found.ok()) return answer(found.status(), {});
  Job* job = jobs_.FindIncarnation((*found)->account.incarnation);
  if (job == nullptr || !job->running()) {
    const std::string why =
        (*found)->state == Job::State::kFailed ? (*found)->fault.message() : "it has ended";
    return answer(absl::FailedPreconditionError(fmt::format(
                      "job {} is not running, so it has no stalls: {}", request.job(), why)),
                  {});
  }
  if (job->queries.size() >= kQueriesPerJobMax) {
    return answer(absl::ResourceExhaustedError(fmt::format(
                      "{} clients are already querying the stalls of job {}; try again later",
                      job->queries.size(), request.job())),
                  {});
  }
  stall_queries_.AskForStalls(
      *job, context_.options.report_timeout,
      [this, job, waiting_for_min = request.waiting_for_ns_min(), answer](StallQuery& query) {
        if (!query.complete()) {
          const auto silent = std::find(query.answered.begin(), query.answered.end(), false);
          return answer(absl::DeadlineExceededError(fmt::format(
                            "core loop {} did not report the stalls of job {} within {}",
                            silent - query.answered.begin(), job->name(),
                            FormatAge(context_.options.report_timeout))),
                        {});
        }
        v1::ListStallsResponse response;
        DescribeStalls(*job, query, waiting_for_min, response);
        answer(absl::OkStatus(), response);
      });
}

}  // namespace phub::server
