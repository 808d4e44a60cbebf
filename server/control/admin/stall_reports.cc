#include "server/control/admin/stall_reports.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "server/control/on_control.h"
#include "server/control/racks/rack_waiting.h"
#include "server/control/ranks/barriers.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

constexpr std::size_t kQueriesPerJobMax = 16;  // concurrent queries from administrators

// One answer describes the ranks of the rounds that wait longest: the first round whole, and then
// rounds until they have about this many ranks. Rounds that wait for all ranks of a large job would
// need more bytes than an answer may have.
constexpr std::size_t kRanksDescribedMax = 1024;
// How many ranks that have pushed a round are listed, and among how many they are searched.
constexpr int kPushedDescribedMax = 64;
constexpr std::uint32_t kMembersExamined = 1024;
constexpr std::size_t kMembersAUnit = 64;  // this many are looked at for a unit of a turn's budget

// One iteration of one key, merged over all cores.
struct Merged {
  std::pair<KeyIndex, Iteration> round;
  std::uint32_t chunks_waiting = 0;
  TimeNs since = 0;
  std::optional<std::uint32_t> pool_operation;
  std::vector<std::pair<CoreIndex, const StallReport::Entry*>> entries;
};

// The longest wait first; among equals by key and iteration.
std::vector<Merged> Merge(const std::vector<std::unique_ptr<StallReport>>& reports) {
  std::map<std::pair<KeyIndex, Iteration>, Merged> merged;
  for (std::size_t core = 0; core < reports.size(); ++core) {
    const StallReport& report = *reports[core];
    for (std::uint32_t i = 0; i < report.count; ++i) {
      const StallReport::Entry& entry = report.entries[i];
      Merged& stall = merged[{entry.key, entry.iteration}];
      stall.round = {entry.key, entry.iteration};
      stall.since = stall.chunks_waiting == 0 ? entry.since : std::min(stall.since, entry.since);
      stall.chunks_waiting += entry.chunks_waiting;
      if (entry.pooled) stall.pool_operation = entry.pool_operation;
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

// What Merge costs, roughly: a unit for an entry of 64 ranks.
std::size_t UnitsOf(const std::vector<std::unique_ptr<StallReport>>& reports) {
  std::size_t units = 0;
  for (const auto& report : reports) {
    for (std::uint32_t i = 0; i < report->count; ++i) units += report->entries[i].missing.size();
  }
  return units;
}

}  // namespace

struct StallReports::Round {
  struct Rank {
    std::uint32_t rank = 0;
    CoreIndex core{};  // the first one that waits for it
  };
  KeyIndex key{};
  Iteration iteration{};
  std::uint32_t chunks_waiting = 0;
  TimeNs since = 0;
  std::optional<std::uint32_t> pool_operation;
  std::vector<Rank> ranks;  // that the round waits for, ascending
};

struct StallReports::Description {
  // Without the lock. Chooses the rounds to describe.
  void Choose();

  std::string job;
  std::string tenant;
  Incarnation incarnation{};
  std::uint32_t rank_count = 0;
  TimeNs asked_at = 0;
  DurationNs waiting_for_min = 0;
  std::vector<std::unique_ptr<StallReport>> reports;  // [core]
  std::vector<Round> rounds;                          // the longest wait first
  std::size_t round = 0;                              // the next one to describe,
  std::size_t rank = 0;                               // and its next rank
  std::size_t core_across = 0;  // the next one whose round that waits for other racks is described
  std::uint32_t lost_next = 0;  // lost ranks of other racks from this one on are not described yet
  v1::ListStallsResponse response;
  Answer<v1::ListStallsResponse> answer;
};

void StallReports::Description::Choose() {
  std::size_t ranks_chosen = 0;
  for (const Merged& stall : Merge(reports)) {
    if (asked_at - stall.since < waiting_for_min || ranks_chosen >= kRanksDescribedMax) break;
    Round& chosen = rounds.emplace_back();
    chosen.key = stall.round.first;
    chosen.iteration = stall.round.second;
    chosen.chunks_waiting = stall.chunks_waiting;
    chosen.since = stall.since;
    chosen.pool_operation = stall.pool_operation;
    for (std::uint32_t each = 0; each < rank_count; ++each) {
      if (const std::optional<CoreIndex> core = WaitsFor(stall, each))
        chosen.ranks.push_back({each, *core});
    }
    ranks_chosen += chosen.ranks.size();
  }
}

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

// The first ranks that have pushed the round: members that it does not wait for.
void StallReports::DescribePushed(const Job& job, const Round& round, v1::Stall& described) {
  const Members* const members = MembersOf(job, round.key);
  const auto count =
      members != nullptr ? members->count() : static_cast<std::uint32_t>(job.members.size());
  auto waited_for = round.ranks.begin();
  for (std::uint32_t i = 0; i < std::min(count, kMembersExamined); ++i) {
    const std::uint32_t rank = members != nullptr ? members->RankOf(i).value : i;
    while (waited_for != round.ranks.end() && waited_for->rank < rank) ++waited_for;
    if (waited_for != round.ranks.end() && waited_for->rank == rank) continue;
    described.add_pushed_by(rank + job.config.rank_base);
    if (described.pushed_by_size() == kPushedDescribedMax) return;
  }
}

bool StallReports::DescribeMore(const Job& job, Description& description) const {
  const TimeNs now = context_.clock.Now();
  const bool in_turns = context_.turns.has_later();
  bool begun = false;  // work was done in this turn
  // Takes a unit of the turn's budget; false: the budget is used up.
  const auto take = [&] {
    if (in_turns && begun && context_.turns.units() >= context_.options.turn.ranks) return false;
    begun = true;
    context_.turns.Add(1);
    return true;
  };
  while (description.round < description.rounds.size()) {
    if (!take()) return false;
    const Round& round = description.rounds[description.round];
    if (description.rank == 0) {
      v1::Stall& described = *description.response.add_stalls();
      described.set_key(DescribeKey(job, round.key));
      described.set_iteration(round.iteration.value);
      described.set_chunks_waiting(round.chunks_waiting);
      described.set_since_ns(description.asked_at - round.since);
      described.set_pooled(round.pool_operation.has_value());
      described.set_pool_operation(round.pool_operation.value_or(0));
      DescribePushed(job, round, described);
    }
    if (description.rank < round.ranks.size()) {
      const auto& [rank, core] = round.ranks[description.rank];
      v1::Stall& described = *description.response.mutable_stalls()->rbegin();
      DescribeRank(job, rank, core, now, *described.add_waiting_for());
    }
    if (++description.rank < round.ranks.size()) continue;
    ++description.round;
    description.rank = 0;
  }
  for (; description.core_across < description.reports.size(); ++description.core_across) {
    const std::optional<StallReport::Round>& across =
        description.reports[description.core_across]->across;
    if (!across || description.asked_at - across->since < description.waiting_for_min) continue;
    if (!take()) return false;
    v1::Stall& described = *description.response.add_stalls();
    described.set_key(DescribeKey(job, across->key));
    described.set_iteration(across->iteration.value);
    described.set_since_ns(description.asked_at - across->since);
    described.set_waits_for_racks(true);
  }
  while (const auto lost = FirstLostFrom(job, description.lost_next)) {
    if (!take()) return false;
    DescribeLost(*lost, now, *description.response.add_lost_elsewhere());
    description.lost_next = lost->rank + 1;
  }
  return true;
}

void StallReports::Continue(const std::shared_ptr<Description>& description) {
  const Job* const job = jobs_.FindIncarnation(description->incarnation);
  if (job == nullptr || job->released()) {
    return description->answer(
        absl::FailedPreconditionError(fmt::format(
            "job {} ended while its stalls were described, so it has none", description->job)),
        {});
  }
  if (!DescribeMore(*job, *description)) {
    return context_.turns.RunLater(description->tenant,
                                   [this, description] { Continue(description); });
  }
  description->answer(absl::OkStatus(), std::move(description->response));
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
        const auto description = std::make_shared<Description>();
        description->job = job->name();
        description->tenant = job->account.tenant;
        description->incarnation = job->account.incarnation;
        description->rank_count = static_cast<std::uint32_t>(job->members.size());
        description->asked_at = context_.clock.Now();
        description->waiting_for_min = waiting_for_min;
        description->answer = answer;
        context_.turns.Add(job->members.size() / kMembersAUnit);
        if (auto barrier = Barriers::Describe(*job, description->asked_at);
            barrier && barrier->since_ns() >= waiting_for_min)
          description->response.mutable_barrier()->Swap(&*barrier);
        query.answered_count = 0;  // still complete
        description->reports = std::exchange(query.reports, {});
        context_.turns.RunLong(
            UnitsOf(description->reports), description->tenant,
            [description] { description->Choose(); },
            [this, description] { Continue(description); });
      });
}

}  // namespace phub::server
