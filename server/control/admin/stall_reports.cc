#include "server/control/admin/stall_reports.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "server/control/on_control.h"
#include "server/control/racks/rack_waiting.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

constexpr std::size_t kQueriesPerJobMax = 16;  // concurrent queries from administrators

// One answer describes the ranks of the rounds that wait longest: the first round whole, and then
// rounds until they have about this many ranks. Rounds that wait for all ranks of a large job would
// take seconds under control's lock, and more bytes than an answer may have.
constexpr std::size_t kRanksDescribedMax = 1024;

// One iteration of one key, merged over all cores.
struct Merged {
  std::pair<KeyIndex, Iteration> round;
  std::uint32_t chunks_waiting = 0;
  TimeNs since = 0;
  std::vector<std::pair<CoreIndex, const StallReport::Entry*>> entries;
};

// The longest wait first; among equals by key and iteration.
std::vector<Merged> Merge(const StallQuery& query) {
  std::map<std::pair<KeyIndex, Iteration>, Merged> merged;
  for (std::size_t core = 0; core < query.reports.size(); ++core) {
    const StallReport& report = *query.reports[core];
    for (std::uint32_t i = 0; i < report.count; ++i) {
      const StallReport::Entry& entry = report.entries[i];
      Merged& stall = merged[{entry.key, entry.iteration}];
      stall.round = {entry.key, entry.iteration};
      stall.since = stall.chunks_waiting == 0 ? entry.since : std::min(stall.since, entry.since);
      stall.chunks_waiting += entry.chunks_waiting;
      stall.entries.emplace_back(CoreAt(core), &entry);
    }
  }
  std::vector<Merged> stalls;
  for (auto& [round, stall] : merged) stalls.push_back(std::move(stall));
  std::ranges::stable_sort(stalls, {}, &Merged::since);
  return stalls;
}

// The first core that waits for the rank.
std::optional<CoreIndex> WaitsFor(const Merged& stall, std::uint32_t rank) {
  for (const auto& [core, entry] : stall.entries) {
    if (entry->missing[rank / 64] >> (rank % 64) & 1) return core;
  }
  return std::nullopt;
}

}  // namespace

std::string StallReports::DescribeLane(const Member& member, CoreIndex core) const {
  PHUB_ON_CONTROL();
  if (member.state == Member::State::kAwaited) return "none: the rank has not joined";
  if (member.lanes.empty()) return "none: the job has ended";
  const LanePlace& place = member.lanes[core.value];
  if (place.connection != nullptr) return place.description;
  if (place.description.empty()) return "none: not opened yet";
  return fmt::format("none: {} was lost ({})", place.description, place.loss);
}

void StallReports::DescribeRank(const Job& job, std::uint32_t rank, CoreIndex core, TimeNs now,
                                v1::StalledRank& described) const {
  const Member& member = job.members[rank];
  described.set_rank(rank + job.config.rank_base);
  described.set_host(member.host);
  described.set_state(ToString(member.state));
  if (member.last_heard != 0) described.set_last_heartbeat_age_ns(now - member.last_heard);
  described.set_lane(DescribeLane(member, core));
  if (member.state == Member::State::kLost)
    described.set_awaited_for_ns(std::max<DurationNs>(0, member.awaited_until - now));
}

void StallReports::DescribeStalls(const Job& job, const StallQuery& query,
                                  DurationNs waiting_for_min,
                                  v1::ListStallsResponse& response) const {
  const TimeNs now = context_.clock.Now();
  std::size_t described_ranks = 0;
  for (const Merged& stall : Merge(query)) {
    if (now - stall.since < waiting_for_min || described_ranks >= kRanksDescribedMax) break;
    v1::Stall& described = *response.add_stalls();
    described.set_key(DescribeKey(job, stall.round.first));
    described.set_iteration(stall.round.second.value);
    described.set_chunks_waiting(stall.chunks_waiting);
    described.set_since_ns(now - stall.since);
    for (std::uint32_t rank = 0; rank < job.members.size(); ++rank) {
      const std::optional<CoreIndex> core = WaitsFor(stall, rank);
      if (!core) continue;
      ++described_ranks;
      DescribeRank(job, rank, *core, now, *described.add_waiting_for());
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
}

void StallReports::ListStalls(const v1::ListStallsRequest& request,
                              Answer<v1::ListStallsResponse> answer) {
  PHUB_ON_CONTROL();
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
