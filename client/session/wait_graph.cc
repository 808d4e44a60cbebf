#include "client/session/wait_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "common/base/printable.h"

namespace phub::client {
namespace {

constexpr int kRanksNamed = 8;

// How a rank was reached: `by` has pushed `round`, which waits for it.
struct Step {
  std::uint32_t by = 0;
  const v1::Stall* round = nullptr;
};

std::string RanksOf(const v1::Stall& stall) {
  std::string text = stall.waiting_for_size() == 1 ? "rank " : "ranks ";
  const int named = std::min(stall.waiting_for_size(), kRanksNamed);
  for (int i = 0; i < named; ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", stall.waiting_for(i).rank());
  if (stall.waiting_for_size() > named)
    text += fmt::format(" and {} others", stall.waiting_for_size() - named);
  return text;
}

std::string RoundText(const v1::Stall& stall) {
  const std::string key = fmt::format("key {}", Printable(stall.key()));
  return stall.pooled() ? fmt::format("{} (operation {})", key, stall.pool_operation()) : key;
}

bool IsPushedBy(const v1::Stall& stall, std::uint32_t rank) {
  return std::ranges::find(stall.pushed_by(), rank) != stall.pushed_by().end();
}

// The steps from `rank` back to it, through a round of `first`; empty: there is no cycle.
std::vector<std::pair<Step, std::uint32_t>> FindCycle(const v1::ListStallsResponse& stalls,
                                                      const v1::Stall& first, std::uint32_t rank) {
  std::map<std::uint32_t, Step> reached;  // ranks
  std::deque<std::uint32_t> next;
  const auto follow = [&](std::uint32_t from, const v1::Stall& stall) {
    for (const v1::StalledRank& waited : stall.waiting_for())
      if (reached.try_emplace(waited.rank(), Step{from, &stall}).second)
        next.push_back(waited.rank());
  };
  follow(rank, first);
  while (!next.empty() && !reached.contains(rank)) {
    const std::uint32_t from = next.front();
    next.pop_front();
    for (const v1::Stall& stall : stalls.stalls())
      if (IsPushedBy(stall, from)) follow(from, stall);
  }
  std::vector<std::pair<Step, std::uint32_t>> cycle;  // and the rank that each step waits for
  for (auto at = reached.find(rank); at != reached.end(); at = reached.find(at->second.by)) {
    cycle.emplace_back(at->second, at->first);
    if (at->second.by == rank) break;
  }
  std::ranges::reverse(cycle);
  return cycle;
}

}  // namespace

std::string DescribeWait(const v1::ListStallsResponse& stalls, std::string_view key,
                         std::uint32_t rank) {
  const auto own = std::find_if(
      stalls.stalls().begin(), stalls.stalls().end(),
      [&](const v1::Stall& stall) { return stall.key() == key && stall.waiting_for_size() > 0; });
  if (own == stalls.stalls().end()) return "";
  std::string text = fmt::format("it waits for {}", RanksOf(*own));
  const auto cycle = FindCycle(stalls, *own, rank);
  for (std::size_t i = 0; i < cycle.size(); ++i) {
    const auto& [step, waited] = cycle[i];
    text += fmt::format("; {}rank {} has pushed {}, which waits for rank {}",
                        i == 0 ? "ranks wait for each other: " : "", step.by,
                        RoundText(*step.round), waited);
  }
  return text;
}

}  // namespace phub::client
