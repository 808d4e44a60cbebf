// Sharded star: every member is the home of 1/N of the data; all others send to it directly, and it
// sends the result to all. This is the exchange of parameter servers (Li et al., "Scaling
// Distributed Machine Learning with the Parameter Server", OSDI 2014), all-to-all between homes. It
// takes two steps for any number of members, so latency counts only twice. But nothing is summed on
// the way: a narrow link carries every member's contribution separately.
#include "common/plan/planners/planner.h"
#include "common/plan/planners/rank_forest.h"

namespace phub::plan {
namespace {

absl::StatusOr<Forest> PlanShardedStar(const Topology& topology, const PlannerOptions&) {
  const std::size_t count = topology.members().size();
  RankForest forest(topology, "sharded-star", NaturalOrder(topology),
                    static_cast<std::int64_t>(count));
  for (std::size_t home = 0; home < count; ++home) {
    forest.AddTree(home, 1);
    // In the order of ranks after the home: receivers do not all start with the same member.
    for (std::size_t i = 1; i < count; ++i) forest.Mirror((home + i) % count, home, 0, 1);
  }
  return forest.Take();
}

}  // namespace

Planner ShardedStarPlanner() {
  return {"sharded-star", "every member sends each shard directly to its home", CheckEdges,
          PlanShardedStar};
}

}  // namespace phub::plan
