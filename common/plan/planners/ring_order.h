// Finds an order of members for a short ring. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "common/plan/topology.h"

namespace phub::plan {

// Returns the shortest ring of these:
//  - the members in the order of ranks;
//  - if members are linked to each other, a ring of direct neighbours. Depth-first search that
//    visits the member with the fewest unvisited neighbours first (Warnsdorff 1823), with limited
//    backtracking and several starts;
//  - otherwise, a nearest-neighbour ring improved by 2-opt (Croes 1958).
std::vector<NodeIndex> RingOrder(const Topology& topology, std::uint64_t seed);

}  // namespace phub::plan
