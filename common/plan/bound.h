// Lower bounds for the time of an exchange, from bandwidth only. Pure; any thread.
//
// Reduce and gather may overlap, so the sum of their bounds is not a bound for every plan. Two
// bounds hold: all data cross every cut with members on both sides (`narrowest`). If only members
// sum, data also cross every partition of the members (`partition`, common/plan/partition_bound.h).
//
// All-gather: every member starts with one chunk, 1/N of the data, and needs the other N-1. Take
// any set S of nodes that does not contain all members. In every schedule the chunks of the members
// in S must leave S over its outgoing links, which takes at least |members in S| / bandwidth out of
// S. The maximum over all S is the bound. It can be reached (Edmonds' disjoint branchings; Zhao et
// al., "ForestColl: Throughput-Optimal Collective Communications on Heterogeneous Network Fabrics",
// 2024). Reduce-scatter is an all-gather on the reversed links.
//
// The search is exact, in integers. Add a source with an edge of capacity 1/y to every member. y is
// at least the bound if and only if the maximum flow from the source to each member is N/y. The
// search starts with the y of one set. A member with less flow gives a cut, which is a set with a
// greater y. The search ends when every member has enough flow (Dinkelbach 1967).
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "common/plan/partition_bound.h"
#include "common/plan/rational.h"
#include "common/plan/topology.h"

namespace phub::plan {

struct CutBound {
  // The unit is the time of one chunk, 1/N of the data, on a unit link. 15/4 on torus:4x4.
  Rational chunk_times;
  std::vector<NodeIndex> cut;  // the set S
};

struct ExchangeBound {
  CutBound reduce;  // reduce-scatter
  CutBound gather;  // all-gather
  // reduce + gather: the bound of plans that run one phase after the other. Plans whose phases
  // overlap can be faster.
  Rational one_after_the_other;
  // The bound of every plan, even if switches sum and multicast: all data, N chunks, must cross
  // every cut with members on both sides, in both directions.
  CutBound narrowest;
  PartitionBound partition;  // of plans in which only members sum

  // The bound of plans in which only members sum (not SumsInSwitches): the greater one of the two.
  const Rational& members_sum() const {
    return std::max(narrowest.chunk_times, partition.chunk_times);
  }
};

CutBound GatherBound(const Topology& topology);
// nullopt if a result exceeds 63 bits.
std::optional<ExchangeBound> BoundOf(const Topology& topology);

// Converts `chunk_times` to seconds. `bytes` is the size of all data.
double SecondsFor(const Topology& topology, const Rational& chunk_times, double bytes);

}  // namespace phub::plan
