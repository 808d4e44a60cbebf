// Ring (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
// JPDC 2009). Members stand in a circle; the partial sum of home h starts at the member behind it
// and walks once round the circle, each member adding its own, until it reaches h; the result walks
// round again. In every step each member sends one shard and receives one: the load of a member is
// the least possible, at the price of N-1 steps each way. The circle is chosen so that neighbours
// are near: common/plan/planners/ring_order.h.
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
  return {"ring", "partial sums, then results, go around a ring of all members", CheckAllPairs,
          PlanRing};
}

}  // namespace phub::plan
