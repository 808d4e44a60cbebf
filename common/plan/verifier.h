// Checks that a forest is a correct exchange on a topology, and computes the load of each link. It
// is independent of planners: it executes the forest symbolically, with multisets of contributors.
//
// It rejects the following, with the tree, the edge and the reason:
//  - shares that are not positive or do not sum to 1; homes that are not members;
//  - a path that does not consist of links from the edge's sender to its receiver, visits a node
//    twice, or passes through a member that does not forward;
//  - an edge from or to a node that cannot sum, or to a member outside the plan's group;
//  - a cycle of waits, and an edge whose step is not after those of the edges that it waits for.
//    A valid plan therefore cannot deadlock;
//  - a partial sum that is sent twice, or sent to a node that does not forward it;
//  - a home that does not get every member's contribution exactly once;
//  - a member that does not receive the result, or receives it twice.
// In the plan of a group, "every member" is every member of the group (Forest::group).
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
  std::int64_t share = 0;  // in 1/share_unit of the data, not divided by the link's capacity
};

struct VerifyReport {
  std::uint32_t steps = 0;
  std::uint32_t reduce_steps = 0;  // from the first to the last step with a reduce edge
  std::uint32_t gather_steps = 0;
  std::vector<std::vector<LinkLoad>> step_loads;  // by step; only links with load, by link
  std::vector<std::int64_t> reduce_load;          // by link, all steps together
  std::vector<std::int64_t> gather_load;
  // The time of each phase from bandwidth only: that of its busiest link. The unit is the time of
  // all data on a unit link. Compare with common/plan/bound.h.
  Rational reduce_time;
  Rational gather_time;
  Rational total_time;  // both phases together: the busiest link's sum
  // The same for each step, and the sum over all steps: the time if steps run one after another.
  std::vector<Rational> step_times;
  double lockstep_time = 0;
};

absl::StatusOr<VerifyReport> Verify(const Topology& topology, const Forest& forest);

// The time of share/share_unit of the data on the link. The unit is the time of all data on a unit
// link. nullopt if the fraction exceeds 63 bits.
std::optional<Rational> TimeOn(const Topology& topology, LinkIndex link, std::int64_t share,
                               std::int64_t share_unit);

}  // namespace phub::plan
