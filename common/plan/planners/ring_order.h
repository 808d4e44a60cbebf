// The order in which members stand in a ring so that the ring is short. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "common/plan/topology.h"

namespace phub::plan {

// The members' own order if no shorter circle is found; else, on networks where members are linked
// to each other, a circle of neighbours if one is found (depth-first search that visits first who
// has the fewest ways left, Warnsdorff 1823, with few steps back and several starts), else the best
// of a nearest-neighbour circle improved by 2-opt (Croes 1958).
std::vector<NodeIndex> RingOrder(const Topology& topology, std::uint64_t seed);

}  // namespace phub::plan
