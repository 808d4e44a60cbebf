// Advice from measured bandwidths and round trips: the topology derived from them, a ring order for
// the members, and a plan that is at least as fast on that topology as the plan chosen from the
// configured topology. Pure; any thread; deterministic.
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
  // The same limits that daemons use when they choose a plan for a job.
  std::uint32_t starts = 8;
  std::uint32_t pieces_max = 16;
  std::function<void(std::string_view what)> progress = {};  // may be empty
};

// A plan and its simulated time on the measured topology.
struct AdvisedPlan {
  std::string planner = {};
  double seconds = 0;
};

struct Advice {
  Topology measured;
  // Ranks in the best order for a ring, starting in the group of rank 0.
  std::vector<std::uint32_t> order = {};
  AdvisedPlan configured = {};      // the plan chosen from the configured topology
  AdvisedPlan proposed = {};        // never slower than `configured`
  Forest plan = {};                 // the proposed plan, on the configured topology
  double ring_seconds = 0;          // time of a ring in the order of ranks
  double ordered_ring_seconds = 0;  // time of a ring in `order`

  double gain() const { return configured.seconds / proposed.seconds; }
};

// `between`: see TopologyOf. Errors: those of TopologyOf, or no planner supports a topology.
absl::StatusOr<Advice> Advise(const Topology& configured, const Measured& measured,
                              const RankGroups& groups, const SquareMatrix& between,
                              const AdviceOptions& options);

}  // namespace phub::plan
