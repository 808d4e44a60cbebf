// Derives a topology from measurements between members: groups of near members and the bandwidths
// of links. Also transfers a forest to another topology. Pure; any thread; deterministic.
//
// A clear gap separates groups: the farthest pair within a group is nearer than the nearest pair of
// two groups, and most members are in a group with others. Bandwidths are compared first, because
// they determine most of a plan's time. Round trips are compared if bandwidths show no gap.
//
// The topology has a switch for each group. The bandwidth between groups (`between`) is measured
// separately, with as many concurrent pairs as possible: a single pair cannot tell a shared link
// from separate links. If the result is consistent, each group has an uplink to one core switch.
// Otherwise every two groups have a link. Bandwidths that differ only by noise are made equal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/forest.h"
#include "common/plan/reorder.h"
#include "common/plan/topology.h"

namespace phub::plan {

using SquareMatrix = std::vector<std::vector<double>>;  // the diagonal is ignored

struct Measured {  // [from rank][to rank]
  SquareMatrix round_trip_s;
  SquareMatrix bytes_per_s;
};

// Each group is in ascending order of ranks; groups are ordered by their first rank.
using RankGroups = std::vector<std::vector<std::uint32_t>>;

// Returns one group of all members if there is no clear gap. REQUIRES: all numbers are positive.
RankGroups FindGroups(const Measured& measured);

// The time to send `bytes` from one member to another.
CostMatrix CostsOf(const Measured& measured, std::int64_t bytes);

// As many pairs between two groups as possible without a common member.
std::vector<std::pair<std::uint32_t, std::uint32_t>> PairsBetween(
    const std::vector<std::uint32_t>& one, const std::vector<std::uint32_t>& other);

// `names`: the members' names, in the order of ranks. `between`: total bytes per second of all
// pairs from one group to another, [from group][to group]. Fails if a bandwidth is out of range.
absl::StatusOr<Topology> TopologyOf(const std::vector<std::string>& names, const Measured& measured,
                                    const RankGroups& groups, const SquareMatrix& between);

// Transfers a forest to another topology: rank r of `to` replaces rank r of `from`. InvalidArgument
// if the numbers of members differ, or if the forest sums in switches.
absl::StatusOr<Forest> Transfer(const Topology& from, const Forest& forest, const Topology& to);

}  // namespace phub::plan
