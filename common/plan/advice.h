// What measured ways between members are good for: the topology that they tell of, the order in
// which a ring would pass the members, and a plan that is faster on it than the one that is chosen
// from the configured topology. Pure; any thread; deterministic.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/forest.h"
#include "common/plan/measured.h"
#include "common/plan/topology.h"

namespace phub::plan {

struct AdviceOptions {
  std::int64_t size_bytes = std::int64_t{64} << 20;
  // Planners that search, and pieces: as daemons bound them when they choose for a job.
  std::uint32_t starts = 8;
  std::uint32_t pieces_max = 16;
  std::function<void(std::string_view what)> progress = {};  // may be empty
};

// Both simulated on the measured topology.
struct AdvisedPlan {
  std::string planner = {};
  double seconds = 0;
};

struct Advice {
  Topology measured;
  // Ranks, as a ring should pass them; it begins in the group of 0.
  std::vector<std::uint32_t> order = {};
  AdvisedPlan configured = {};      // what is chosen from the configured topology
  AdvisedPlan proposed = {};        // never slower
  Forest plan = {};                 // the proposed one, on the configured topology
  double ring_seconds = 0;          // in the order of ranks
  double ordered_ring_seconds = 0;  // in `order`

  double gain() const { return configured.seconds / proposed.seconds; }
};

// `between` as TopologyOf has it. Errors: TopologyOf's; no planner fits.
absl::StatusOr<Advice> Advise(const Topology& configured, const Measured& measured,
                              const RankGroups& groups, const SquareMatrix& between,
                              const AdviceOptions& options);

}  // namespace phub::plan
