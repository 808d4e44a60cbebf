// Ring (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
// JPDC 2009). The partial sum of home h starts at the member after h and goes once around the ring;
// each member adds its contribution, until the sum reaches h. The result then goes around the ring.
// In every step each member sends one shard and receives one. The load of a member is the minimum,
// but each phase takes N-1 steps. Neighbours in the ring are near:
// common/plan/planners/ring_order.h.
#include "common/plan/planners/planner.h"
#include "common/plan/planners/rank_forest.h"
#include "common/plan/planners/ring_order.h"

namespace phub::plan {
namespace {

absl::StatusOr<Forest> PlanRing(const Topology& topology, const PlannerOptions& options) {
  const std::size_t count = topology.members().size();
  const auto steps = static_cast<std::uint32_t>(count - 1);
  RankForest forest(topology, "ring", RingOrder(topology, options.seed),
                    static_cast<std::int64_t>(count));
  for (std::size_t home = 0; home < count; ++home) {
    forest.AddTree(home, 1);
    for (std::uint32_t step = 0; step < steps; ++step) {
      forest.Reduce((home + 1 + step) % count, (home + 2 + step) % count, step);
      forest.Gather((home + step) % count, (home + 1 + step) % count, steps + step);
    }
  }
  return forest.Take();
}

}  // namespace

Planner RingPlanner() {
  return {"ring", "partial sums, then results, go around a ring of all members", CheckEdges,
          PlanRing};
}

}  // namespace phub::plan
