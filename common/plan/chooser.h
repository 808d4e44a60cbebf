// Which planner, and how many pieces, for a topology and a size: the least simulated time over all
// planners that apply. Pure; any thread.
//
// Every plan is verified, and priced in lockstep for 1, 4, 16, 64... pieces. The plans that could
// be best by that are then simulated as flows; the others keep their lockstep price, which the
// table says. Endpoint costs count in both.
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
  SimulationOptions simulation;  // pieces: used as given if above 1, else chosen
  PlannerOptions planner;
  std::uint32_t pieces_max = 256;
  // Told which planner is at work; may be empty.
  std::function<void(std::string_view planner)> progress = {};
};

struct Candidate {
  std::string planner;
  absl::Status status;  // why it is not in the race, or OK
  Forest forest;
  std::uint32_t steps = 0;
  std::uint32_t pieces = 1;
  bool is_simulated_as_flows = false;  // else the time is lockstep's
  double seconds = 0;
  double of_bound = 0;            // time / time of the bound for reduce-scatter + all-gather
  double busiest_link_bytes = 0;  // both phases
  double mean_link_use = 0;       // of links between any nodes, over the time
};

struct Choice {
  ExchangeBound bound;
  double bound_seconds = 0;
  std::vector<Candidate> candidates;  // in the order of the registry
  std::optional<std::size_t> best;    // into candidates
};

absl::StatusOr<Choice> Choose(const Topology& topology, const ChooserOptions& options);

}  // namespace phub::plan
