// Rank reordering: the same plan, with members in other places. Where ranks were given out at
// random, neighbours of a ring lie in different racks and every step crosses narrow links; a better
// order is found from a matrix of what it costs any two members to talk, without knowing the
// network (after Luo et al., "PLink/Cloud Collectives", 2020-2021). Pure; any thread;
// deterministic.
//
//  1. Members are clustered: costs are sorted, and at every wide gap in them members that are
//  closer
//     than the gap become one cluster; ordering members cluster by cluster is a first start.
//  2. From it, from the given order and from a nearest-neighbour order, parts of the order are
//  turned
//     round while the sum over the plan's edges of share times cost falls (2-opt). The matrix is
//     made symmetric first: with costs that differ by direction turning round might go on for ever.
//     Directly lowering the busiest link gets stuck on plateaus; the sum does not.
//  3. The best few are polished by the simulator: exchanging two members, keeping what is faster.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/forest.h"
#include "common/plan/simulator.h"
#include "common/plan/topology.h"

namespace phub::plan {

// [from rank][to rank], any unit, such as measured round trips; the diagonal is ignored.
using CostMatrix = std::vector<std::vector<double>>;

// What the links' bandwidths and latencies say: the time of `bytes` alone on the shortest path.
// A shared link counts by how many members are behind it, as they are likely to use it together.
absl::StatusOr<CostMatrix> CostsOf(const Topology& topology, std::int64_t bytes);

// order[rank] is the member that takes the place which `forest` gives to the member of that rank.
// Edges are routed anew.
absl::StatusOr<Forest> Relabel(const Topology& topology, const Forest& forest,
                               const std::vector<NodeIndex>& order);

struct ReorderResult {
  std::vector<NodeIndex> order;
  Forest forest;
  double seconds_before = 0;  // lockstep, of the forest as given
  double seconds_after = 0;   // never more
};

absl::StatusOr<ReorderResult> Reorder(const Topology& topology, const Forest& forest,
                                      const CostMatrix& costs, const SimulationOptions& simulation);

}  // namespace phub::plan
