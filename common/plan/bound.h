// A lower bound for the time of an exchange, from bandwidth only. Pure; any thread.
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

#include <optional>
#include <vector>

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
  Rational both;    // reduce + gather: the bound of every exchange that consists of both
  // The bound of every all-reduce, even if switches sum and multicast: all data, N chunks, must
  // cross every cut with members on both sides, in both directions.
  Rational aggregated;
};

CutBound GatherBound(const Topology& topology);
// nullopt if a result exceeds 63 bits.
std::optional<ExchangeBound> BoundOf(const Topology& topology);

// Converts `chunk_times` to seconds. `bytes` is the size of all data.
double SecondsFor(const Topology& topology, const Rational& chunk_times, double bytes);

}  // namespace phub::plan
