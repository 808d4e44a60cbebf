#include "common/plan/around.h"

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include "common/base/check.h"
#include "common/plan/simulator.h"
#include "common/plan/subset.h"
#include "common/plan/verifier.h"

namespace phub::plan {
namespace {

constexpr int kPassesMax = 8;

// How good a candidate is next to others; smaller is better.
using Score = std::tuple<double, double, std::size_t>;

Score ScoreOf(const Topology& topology, const GroupPlan& plan, const LinkTimes& others,
              std::int64_t bytes, std::size_t place) {
  std::int64_t busiest = 0;
  double shared = 0;
  for (std::size_t link = 0; link < plan.times.size(); ++link) {
    if (plan.times[link] == 0) continue;
    busiest = std::max(busiest, plan.times[link] + others[link]);
    shared += static_cast<double>(plan.times[link]) * static_cast<double>(others[link]);
  }
  const double unit_seconds =
      static_cast<double>(bytes) / static_cast<double>(topology.unit_bytes_per_s());
  const double together =
      static_cast<double>(busiest) / static_cast<double>(kLinkTimeUnit) * unit_seconds;
  return {std::max(plan.seconds, together), shared, place};
}

absl::StatusOr<double> SecondsOf(const Topology& topology, const Forest& forest,
                                 std::int64_t bytes) {
  SimulationOptions options;
  options.size_bytes = bytes;
  const auto simulated = Simulate(topology, forest, options);
  if (!simulated.ok()) return simulated.status();
  return simulated->seconds();
}

// The first candidate is the first maker's plan for the members in their own order. Fails if that
// does.
absl::StatusOr<std::vector<GroupPlan>> CandidatesFor(const Topology& topology,
                                                     const std::vector<NodeIndex>& members,
                                                     const AroundOptions& options) {
  std::vector<GroupPlan> candidates;
  const auto count = static_cast<std::uint32_t>(members.size());
  const std::uint32_t orders = std::min(count, options.orders);
  for (const MakesForest& make : options.makers) {
    for (std::uint32_t i = 0; i < orders; ++i) {
      auto forest =
          PlanForMembers(topology, members, make, i * count / orders, options.aggregators);
      if (!forest.ok() && candidates.empty()) return forest.status();
      if (!forest.ok()) break;
      LinkTimes times = LinkTimesOf(topology, *forest);
      const auto is_same = [&](const GroupPlan& each) {
        return each.times == times && each.forest.planner == forest->planner;
      };
      if (std::ranges::any_of(candidates, is_same)) continue;
      const absl::StatusOr<double> seconds = SecondsOf(topology, *forest, options.size_bytes);
      if (!seconds.ok()) return seconds.status();
      candidates.push_back({*std::move(forest), std::move(times), *seconds});
    }
  }
  return candidates;
}

std::size_t BestOf(const Topology& topology, const std::vector<GroupPlan>& candidates,
                   const LinkTimes& others, std::int64_t bytes) {
  Score best = ScoreOf(topology, candidates[0], others, bytes, 0);
  for (std::size_t i = 1; i < candidates.size(); ++i)
    best = std::min(best, ScoreOf(topology, candidates[i], others, bytes, i));
  return std::get<std::size_t>(best);
}

}  // namespace

LinkTimes LinkTimesOf(const Topology& topology, const Forest& forest) {
  const auto report = Verify(topology, forest);
  PHUB_CHECK(report.ok(), "topology={}", topology.name());
  LinkTimes times(topology.links().size(), 0);
  for (std::uint32_t link = 0; link < times.size(); ++link) {
    const std::int64_t share = report->reduce_load[link] + report->gather_load[link];
    const double of_unit = topology.CapacityOf(LinkIndex{link}).ToDouble();
    times[link] = static_cast<std::int64_t>(static_cast<double>(share) /
                                            static_cast<double>(forest.share_unit) / of_unit *
                                            static_cast<double>(kLinkTimeUnit));
  }
  return times;
}

void AddTo(LinkTimes& times, const LinkTimes& more) {
  times.resize(std::max(times.size(), more.size()), 0);
  for (std::size_t link = 0; link < more.size(); ++link) times[link] += more[link];
}

void TakeFrom(LinkTimes& times, const LinkTimes& less) {
  for (std::size_t link = 0; link < less.size(); ++link) times[link] -= less[link];
}

std::int64_t Busiest(const LinkTimes& times) {
  return times.empty() ? 0 : *std::ranges::max_element(times);
}

// Each group in turn takes its best candidate next to all others, until none would change.
absl::StatusOr<std::vector<GroupPlan>> PlanAround(const Topology& topology,
                                                  std::span<const std::vector<NodeIndex>> groups,
                                                  const LinkTimes& others,
                                                  const AroundOptions& options) {
  LinkTimes all = others;
  all.resize(topology.links().size(), 0);
  // [group]: groups of the same members share them.
  std::vector<std::shared_ptr<const std::vector<GroupPlan>>> candidates;
  std::vector<std::size_t> chosen;
  for (const std::vector<NodeIndex>& members : groups) {
    const auto known = std::ranges::find(groups, members);  // this group, or one before it
    if (const auto place = static_cast<std::size_t>(known - groups.begin());
        place < candidates.size()) {
      candidates.push_back(candidates[place]);
    } else {
      auto made = CandidatesFor(topology, members, options);
      if (!made.ok()) return made.status();
      candidates.push_back(std::make_shared<const std::vector<GroupPlan>>(*std::move(made)));
    }
    chosen.push_back(BestOf(topology, *candidates.back(), all, options.size_bytes));
    AddTo(all, (*candidates.back())[chosen.back()].times);
  }
  bool changed = groups.size() > 1;
  for (int pass = 0; changed && pass < kPassesMax; ++pass) {
    changed = false;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      TakeFrom(all, (*candidates[g])[chosen[g]].times);
      const std::size_t best = BestOf(topology, *candidates[g], all, options.size_bytes);
      changed |= std::exchange(chosen[g], best) != best;
      AddTo(all, (*candidates[g])[best].times);
    }
  }
  std::vector<GroupPlan> plans;
  for (std::size_t g = 0; g < groups.size(); ++g) plans.push_back((*candidates[g])[chosen[g]]);
  return plans;
}

}  // namespace phub::plan
