// The switches on which members lie. Planners use them to enter each one only once.
#pragma once

#include <vector>

#include "common/plan/topology.h"

namespace phub::plan {

// [node], for members: the switch to which all of its links lead. A member with links to several
// nodes, or to another member, is a leaf by itself.
std::vector<NodeIndex> LeavesOf(const Topology& topology);

// Whether several members have the same leaf.
bool HasLeaves(const Topology& topology);

}  // namespace phub::plan
