// Says whether a forest is a correct exchange on a topology, and what it costs each link. It knows
// nothing of planners: it executes the forest symbolically, with multisets of contributors.
//
// Refused, with the tree, the edge and the reason:
//  - shares that are not positive or do not sum to 1; homes that are not members;
//  - an edge whose path is not made of the topology's links from its sender to its receiver, visits
//    a node twice, or passes through a member that does not forward; an end that cannot sum;
//  - waits in a circle, and steps in an order in which an edge would be sent before what it waits
//    for has arrived. Every wait then leads to a lower step, so a plan that passes cannot deadlock;
//  - a partial sum sent twice, or to where it goes no further;
//  - a home that does not end with every member's contribution exactly once;
//  - a member that does not get the result, or gets it twice.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/forest.h"
#include "common/plan/rational.h"
#include "common/plan/topology.h"

namespace phub::plan {

struct LinkLoad {
  LinkIndex link;
  std::int64_t share = 0;  // in 1/share_unit of the data; not divided by the link's capacity
};

struct VerifyReport {
  std::uint32_t steps = 0;
  std::uint32_t reduce_steps = 0;  // from the first to the last step with a reduce edge
  std::uint32_t gather_steps = 0;
  std::vector<std::vector<LinkLoad>> step_loads;  // by step; only links with load, by link
  std::vector<std::int64_t> reduce_load;          // by link, all steps
  std::vector<std::int64_t> gather_load;
  // The time of the busiest link, in the time that a unit link takes for all of the data: what
  // each phase would take if only bandwidth counted. Compare with common/plan/bound.h.
  Rational reduce_time;
  Rational gather_time;
  Rational total_time;  // both phases at once: the busiest link's sum
  // The same per step, and their sum: the time when steps are taken one after the other.
  std::vector<Rational> step_times;
  double lockstep_time = 0;
};

absl::StatusOr<VerifyReport> Verify(const Topology& topology, const Forest& forest);

// share/share_unit of the data over the link, in the time of a unit link for all of the data.
// Nothing if the fraction does not fit 63 bits.
std::optional<Rational> TimeOn(const Topology& topology, LinkIndex link, std::int64_t share,
                               std::int64_t share_unit);

}  // namespace phub::plan
