// A lower bound for plans in which only members sum and switches only forward. It holds although
// reduce and gather overlap. Pure; any thread.
//
// Divide the members into k groups. Every share has a tree for each phase, whose vertices are
// members. Each tree connects all groups, so at least k-1 of its edges lead from one group to
// another. Let S_i be any set of nodes that contains the members of group i and no others. The path
// of such an edge leaves the S_i of its sender. So all data D leave the sets 2(k-1) times:
//
//   T >= 2 (k-1) D / sum of B+(S_i)      (B+(S): the capacity of the links out of S)
//
// The groups must contain all members. Otherwise a member outside all groups could send a result
// into them, and this result would leave none of the S_i. The same holds for links into the sets.
// If all nodes are members and links are symmetric, shares and trees exist that reach the bound
// (Tutte 1961, Nash-Williams 1961). The least sum/(k-1) is then the strength of the graph
// (Cunningham 1985).
//
// The search over all partitions is exact, in integers. The least B+(S_i) is a submodular function
// of group i. For a given ratio y, the partition with the least sum of (B+(S_i) - y) is found
// greedily with one minimum cut per member (Dilworth truncation; Frank and Tardos 1988). The ratio
// of that partition is the next y (Dinkelbach 1967).
#pragma once

#include <cstdint>
#include <vector>

#include "common/plan/rational.h"
#include "common/plan/topology.h"

namespace phub::plan {

struct PartitionBound {
  // The unit is the time of one chunk, 1/N of the data, on a unit link. 0 with one member.
  Rational chunk_times;
  std::vector<std::vector<NodeIndex>> groups;  // members, in the order of ranks
};

// The greatest bound over all partitions, for links out of the sets and for links into them.
PartitionBound BoundOfPartitions(const Topology& topology);

}  // namespace phub::plan
