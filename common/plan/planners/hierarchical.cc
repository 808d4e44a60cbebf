// Hierarchical exchange, as in PHub across racks (Luo et al., "Parameter Hub", SoCC 2018). Each
// rack first sums at its leader for the shard; leaders then exchange with the home. The i-th member
// of a rack leads for the homes that are i-th in their racks, which spreads the work evenly. Each
// shard crosses a rack's uplink once instead of once per host. This helps with narrow uplinks;
// otherwise it costs two additional steps.
#include "common/plan/planners/planner.h"
#include "common/plan/planners/rank_forest.h"

namespace phub::plan {
namespace {

absl::Status HierarchicalApplies(const Topology& topology) {
  const std::size_t groups = GroupsBySwitch(topology).size();
  if (groups < 2 || groups == topology.members().size())
    return absl::FailedPreconditionError(
        "members do not form racks: at least two switches must have members, one of them several");
  return CheckAllPairs(topology);
}

absl::StatusOr<Forest> PlanHierarchical(const Topology& topology, const PlannerOptions&) {
  constexpr std::uint32_t kSteps = 2;  // within racks, then between racks
  const std::vector<std::vector<std::uint32_t>> groups = GroupsBySwitch(topology);
  RankForest forest(topology, "hierarchical", NaturalOrder(topology),
                    static_cast<std::int64_t>(topology.members().size()));
  for (const auto& home_group : groups) {
    for (std::size_t i = 0; i < home_group.size(); ++i) {
      const std::uint32_t home = home_group[i];
      forest.AddTree(home, 1);
      for (const auto& group : groups) {
        const std::uint32_t leader = &group == &home_group ? home : group[i % group.size()];
        for (const std::uint32_t rank : group)
          if (rank != leader) forest.Mirror(rank, leader, 0, kSteps);
        if (leader != home) forest.Mirror(leader, home, 1, kSteps);
      }
    }
  }
  return forest.Take();
}

}  // namespace

Planner HierarchicalPlanner() {
  return {"hierarchical", "sums inside each rack first, then between the racks' leaders",
          HierarchicalApplies, PlanHierarchical};
}

}  // namespace phub::plan
