// How fast an exchange can be at best, counting bandwidth only. Pure; any thread.
//
// All-gather: every member starts with one chunk, 1/N of the data, and needs the other N-1.
// Whatever the schedule, for any set S of nodes that lacks some member, the chunks of the members
// in S must leave S over its outgoing links: that takes at least |members in S| / bandwidth out of
// S. The greatest of these over all S is the bound; it is attained (Edmonds' disjoint branchings;
// Zhao et al., "ForestColl: Throughput-Optimal Collective Communications on Heterogeneous Network
// Fabrics", 2024). Reduce-scatter is an all-gather on the reversed links.
//
// The set is found exactly, in whole numbers: y is the bound if and only if in the network with a
// source that gives 1/y to every member, N/y flow from the source to each member. Starting from one
// set's y, a member that gets less yields a cut, that is a set with a greater y, until none does
// (Dinkelbach 1967).
#pragma once

#include <optional>
#include <vector>

#include "common/plan/rational.h"
#include "common/plan/topology.h"

namespace phub::plan {

struct CutBound {
  // In the time that a chunk of 1/N of the data takes on a unit link: 15/4 on torus:4x4.
  Rational chunk_times;
  std::vector<NodeIndex> cut;  // the set S
};

struct ExchangeBound {
  CutBound reduce;  // reduce-scatter
  CutBound gather;  // all-gather
  Rational both;    // one after the other: the bound of every exchange built from the two
  // What no all-reduce can beat, whatever switches sum and multicast: through every cut with
  // members on both sides all of the data must pass each way, N chunks over the narrowest such cut.
  Rational aggregated;
};

CutBound GatherBound(const Topology& topology);
// Nothing if a result does not fit 63 bits.
std::optional<ExchangeBound> BoundOf(const Topology& topology);

// Seconds for `chunk_times` when all data together are `bytes`.
double SecondsFor(const Topology& topology, const Rational& chunk_times, double bytes);

}  // namespace phub::plan
