// Chooses the planner and the number of pieces for a topology and a size: the minimum simulated
// time over all planners that support the topology. Pure; any thread.
//
// Every plan is verified and then simulated in lockstep for 1, 4, 16, 64... pieces. Then plans are
// simulated as flows, the most promising ones first, and the number of pieces is tuned. Two limits
// keep this short. Both count work (SimulationResult::work), not seconds, so equal input gives an
// equal choice:
//  - a plan whose busiest link needs more time than the best plan found cannot win, so its limit is
//    low; if it has more than a million edges, it is not simulated at all;
//  - ChooserOptions::flow_work_max is the limit of every other plan.
// A plan that cannot be simulated within its limit keeps its lockstep time, and the table says so.
// Both simulations include endpoint costs.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/bound.h"
#include "common/plan/forest.h"
#include "common/plan/planners/planner.h"
#include "common/plan/simulator.h"
#include "common/plan/topology.h"

namespace phub::plan {

struct ChooserOptions {
  SimulationOptions simulation;  // pieces: fixed if above 1; with 1 the chooser chooses
  PlannerOptions planner;
  std::uint32_t pieces_max = 256;
  // Limit of all flow simulations of one plan together: several seconds.
  std::uint64_t flow_work_max = std::uint64_t{1} << 28;
  // Called with the name of each planner before it runs; may be empty.
  std::function<void(std::string_view planner)> progress = {};
};

struct Candidate {
  std::string planner;
  absl::Status status;  // OK, or why the planner is excluded
  // Empty if the plan is large and not the best: large plans are not kept in memory.
  Forest forest;
  std::uint32_t steps = 0;
  std::uint32_t pieces = 1;
  bool is_simulated_as_flows = false;  // false: `seconds` is from the lockstep simulation
  double seconds = 0;
  bool sums_in_switches = false;
  double of_bound = 0;              // seconds / the bound of plans of its kind; never below 1
  double busiest_link_bytes = 0;    // the most bytes over one link, in both phases together
  double busiest_link_seconds = 0;  // the longest time that one link needs for its bytes
  double mean_link_use = 0;         // bytes carried / bytes possible, over all links
};

struct Choice {
  ExchangeBound bound;
  double bound_seconds = 0;                // of plans in which only members sum
  double in_switch_bound_seconds = 0;      // of every plan, even if switches sum
  double one_after_the_other_seconds = 0;  // not a bound of plans whose phases overlap
  std::vector<Candidate> candidates;       // in the order of the registry
  std::optional<std::size_t> best;         // index into candidates
};

absl::StatusOr<Choice> Choose(const Topology& topology, const ChooserOptions& options);

}  // namespace phub::plan
