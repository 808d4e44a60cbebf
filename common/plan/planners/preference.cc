#include "common/plan/planners/preference.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace phub::plan {
namespace {

// Pairs of members in one group that exchange data through a switch.
std::size_t SwitchedPairs(const Topology& topology, const OutForest& forest,
                          const SketchRules& rules) {
  std::set<std::pair<std::uint32_t, std::uint32_t>> pairs;
  for (const OutTree& tree : forest.trees)
    for (const OutEdge& edge : tree.edges) {
      const std::pair ranks(topology.RankOf(edge.from), topology.RankOf(edge.to));
      if (edge.path.size() > 1 && !rules.IsCrossing(ranks.first, ranks.second)) pairs.insert(ranks);
    }
  return pairs.size();
}

// By link: how long it is busy with all its transfers, in times of all data on a unit link.
std::vector<double> BusyTimes(const Topology& topology, const OutForest& forest) {
  std::vector<double> busy(topology.links().size(), 0);
  for (const OutTree& tree : forest.trees)
    for (const OutEdge& edge : tree.edges)
      for (const LinkIndex link : edge.path)
        busy[link.value] += static_cast<double>(tree.share) /
                            static_cast<double>(forest.share_unit) /
                            topology.CapacityOf(link).ToDouble();
  return busy;
}

}  // namespace

double RegretOf(const Topology& topology, const OutForest& forest, const SketchRules& rules) {
  switch (rules.preference) {
    case PlanPreference::kAny: return 0;
    case PlanPreference::kFewestPairs:
      return static_cast<double>(SwitchedPairs(topology, forest, rules));
    case PlanPreference::kMostPairs:
      return -static_cast<double>(SwitchedPairs(topology, forest, rules));
    case PlanPreference::kLowestPeak:
    case PlanPreference::kHighestLow: break;
  }
  const std::vector<double> busy = BusyTimes(topology, forest);
  if (rules.preference == PlanPreference::kLowestPeak)
    return *std::max_element(busy.begin(), busy.end());
  return -*std::min_element(busy.begin(), busy.end());
}

}  // namespace phub::plan
