// The only list of planners.
#include <array>

#include "common/plan/planners/planner.h"

namespace phub::plan {

Planner ShardedStarPlanner();
Planner RingPlanner();
Planner HalvingDoublingPlanner();
Planner DoubleBinaryTreePlanner();
Planner HierarchicalPlanner();
Planner HdrmPlanner();
Planner MultiTreePlanner();
Planner GreedyPlanner();
Planner PackingPlanner();
Planner InSwitchPlanner();

std::span<const Planner> Planners() {
  static const std::array planners = {
      ShardedStarPlanner(),  RingPlanner(),     HalvingDoublingPlanner(), DoubleBinaryTreePlanner(),
      HierarchicalPlanner(), HdrmPlanner(),     MultiTreePlanner(),       GreedyPlanner(),
      PackingPlanner(),      InSwitchPlanner(),
  };
  return planners;
}

const Planner* FindPlanner(std::string_view name) {
  for (const Planner& planner : Planners())
    if (planner.name == name) return &planner;
  return nullptr;
}

absl::StatusOr<Forest> MakePlan(const Planner& planner, const Topology& topology,
                                const PlannerOptions& options) {
  if (absl::Status status = planner.applies(topology); !status.ok()) return status;
  return planner.plan(topology, options);
}

}  // namespace phub::plan
