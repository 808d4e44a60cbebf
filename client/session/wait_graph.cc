#include "client/session/wait_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "common/base/printable.h"
#include "common/base/rank_list.h"

namespace phub::client {
namespace {

constexpr std::size_t kRanksNamed = 8;

// A round or a barrier that some ranks have reached and others have not.
struct Meeting {
  std::vector<std::uint32_t> reached_by;
  std::vector<std::uint32_t> waits_for;
  std::string reached;  // "has pushed key x/0 (operation 4)"
};

bool IsReachedBy(const Meeting& meeting, std::uint32_t rank) {
  return std::ranges::find(meeting.reached_by, rank) != meeting.reached_by.end();
}

Meeting MeetingOf(const v1::Stall& stall) {
  Meeting meeting;
  meeting.reached_by.assign(stall.pushed_by().begin(), stall.pushed_by().end());
  for (const v1::StalledRank& rank : stall.waiting_for()) meeting.waits_for.push_back(rank.rank());
  meeting.reached = fmt::format("has pushed key {}", Printable(stall.key()));
  if (stall.pooled()) meeting.reached += fmt::format(" (operation {})", stall.pool_operation());
  return meeting;
}

Meeting MeetingOf(const v1::StalledBarrier& barrier) {
  return {.reached_by = {barrier.waiting().begin(), barrier.waiting().end()},
          .waits_for = {barrier.missing().begin(), barrier.missing().end()},
          .reached = fmt::format("has reached barrier {}", barrier.number())};
}

std::vector<Meeting> MeetingsOf(const v1::ListStallsResponse& stalls) {
  std::vector<Meeting> meetings;
  for (const v1::Stall& stall : stalls.stalls()) meetings.push_back(MeetingOf(stall));
  if (stalls.has_barrier()) meetings.push_back(MeetingOf(stalls.barrier()));
  return meetings;
}

// How a rank was found: `by` has reached `meeting`, which waits for it.
struct Step {
  std::uint32_t by = 0;
  const Meeting* meeting = nullptr;
};

// The steps from `rank` back to it, through `first`; empty: there is no cycle.
std::vector<std::pair<Step, std::uint32_t>> FindCycle(const std::vector<Meeting>& meetings,
                                                      const Meeting& first, std::uint32_t rank) {
  std::map<std::uint32_t, Step> found;  // ranks
  std::deque<std::uint32_t> next;
  const auto follow = [&](std::uint32_t from, const Meeting& meeting) {
    for (const std::uint32_t waited : meeting.waits_for)
      if (found.try_emplace(waited, Step{from, &meeting}).second) next.push_back(waited);
  };
  follow(rank, first);
  while (!next.empty() && !found.contains(rank)) {
    const std::uint32_t from = next.front();
    next.pop_front();
    for (const Meeting& meeting : meetings)
      if (IsReachedBy(meeting, from)) follow(from, meeting);
  }
  std::vector<std::pair<Step, std::uint32_t>> cycle;  // and the rank that each step waits for
  for (auto at = found.find(rank); at != found.end(); at = found.find(at->second.by)) {
    cycle.emplace_back(at->second, at->first);
    if (at->second.by == rank) break;
  }
  std::ranges::reverse(cycle);
  return cycle;
}

std::string Describe(const std::vector<Meeting>& meetings, const Meeting& own, std::uint32_t rank) {
  std::string text = fmt::format("it waits for {}", ListedRanks(own.waits_for, kRanksNamed));
  const auto cycle = FindCycle(meetings, own, rank);
  for (std::size_t i = 0; i < cycle.size(); ++i) {
    const auto& [step, waited] = cycle[i];
    text += fmt::format("; {}rank {} {}, which waits for rank {}",
                        i == 0 ? "ranks wait for each other: " : "", step.by, step.meeting->reached,
                        waited);
  }
  return text;
}

}  // namespace

std::string DescribeWait(const v1::ListStallsResponse& stalls, std::string_view key,
                         std::uint32_t rank) {
  const auto own = std::find_if(
      stalls.stalls().begin(), stalls.stalls().end(),
      [&](const v1::Stall& stall) { return stall.key() == key && stall.waiting_for_size() > 0; });
  if (own == stalls.stalls().end()) return "";
  return Describe(MeetingsOf(stalls), MeetingOf(*own), rank);
}

std::string DescribeBarrierWait(const v1::ListStallsResponse& stalls, std::uint32_t rank) {
  const Meeting own = MeetingOf(stalls.barrier());
  if (!IsReachedBy(own, rank)) return "";
  return own.waits_for.empty() ? "it waits for ranks of other racks"
                               : Describe(MeetingsOf(stalls), own, rank);
}

}  // namespace phub::client
