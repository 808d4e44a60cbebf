// Rank reordering: the same plan with members in other positions. If ranks are assigned at random,
// neighbours in a ring are in different racks and every step crosses narrow links. A better order
// is computed from a matrix of the communication costs of every two members, without knowledge of
// the network (after Luo et al., "PLink/Cloud Collectives", 2020-2021). Pure; any thread;
// deterministic.
//
//  1. Cluster the members: sort the costs; at every wide gap, members with costs below the gap form
//     a cluster. The members in the order of clusters are the first starting order.
//  2. Improve this order, the given order and a nearest-neighbour order by 2-opt: reverse parts of
//     the order while that lowers the sum of share times cost over the plan's edges. The matrix is
//     made symmetric first; otherwise 2-opt might not terminate. Minimizing the load of the busiest
//     link instead of the sum would get stuck on plateaus.
//  3. Improve the best few orders with the simulator: swap two members if that is faster.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/forest.h"
#include "common/plan/simulator.h"
#include "common/plan/topology.h"

namespace phub::plan {

// [from rank][to rank], in any unit, such as measured round trips. The diagonal is ignored.
using CostMatrix = std::vector<std::vector<double>>;

// Costs from the links' bandwidths and latencies: the time of `bytes` on the shortest path. The
// time on a link grows with the number of shortest paths over it, as many members may use it at
// once.
absl::StatusOr<CostMatrix> CostsOf(const Topology& topology, std::int64_t bytes);

// order[rank] is the member that replaces the member of that rank in `forest`. Edges are routed
// again.
absl::StatusOr<Forest> Relabel(const Topology& topology, const Forest& forest,
                               const std::vector<NodeIndex>& order);

struct ReorderResult {
  std::vector<NodeIndex> order;
  Forest forest;
  double seconds_before = 0;  // lockstep time of the given forest
  double seconds_after = 0;   // never more than seconds_before
};

absl::StatusOr<ReorderResult> Reorder(const Topology& topology, const Forest& forest,
                                      const CostMatrix& costs, const SimulationOptions& simulation);

}  // namespace phub::plan
