// The only list of planners.
#include <array>

#include "absl/status/status.h"
#include "common/plan/planners/planner.h"
#include "common/plan/sketches/sketch_rules.h"
#include "common/plan/verifier.h"
#include "fmt/core.h"

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
  if (options.rules != nullptr && !planner.follows_sketches)
    return absl::FailedPreconditionError(
        "it does not follow the rules of a sketch about members and trees; greedy does");
  if (absl::Status status = planner.applies(topology); !status.ok()) return status;
  absl::StatusOr<Forest> forest = planner.plan(topology, options);
  if (!forest.ok() || options.rules == nullptr) return forest;
  if (const auto report = Verify(topology, *forest); !report.ok()) return report.status();
  if (absl::Status status = CheckRules(topology, *forest, *options.rules); !status.ok())
    return absl::InternalError(
        fmt::format("the planner broke a rule of the sketch: {}", std::string(status.message())));
  return forest;
}

}  // namespace phub::plan
