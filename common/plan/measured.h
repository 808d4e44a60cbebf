// What was measured between members, and the topology that it tells of: who is near whom, how wide
// the ways are, and a forest made for one topology on another one. Pure; any thread; deterministic.
//
// Members of one group are near each other, and far from those of other groups, by a clear gap: the
// farthest pair of any one group is nearer than the nearest pair of two groups; and most members
// are in a group with others. Bandwidths are asked first, since a plan's time is mostly theirs;
// round trips where those show nothing.
//
// The topology has a switch for each group. What lies between groups is measured apart, with as
// many pairs at once as there are (`between`): one pair alone cannot tell a shared link from links
// of their own. Where that fits, each group has an uplink to one core switch; else every two groups
// have a link. Bandwidths that differ by less than noise does are made equal.
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

// Ranks, ascending; groups by their first.
using RankGroups = std::vector<std::vector<std::uint32_t>>;

// One group of all if there is no clear gap. All numbers are positive.
RankGroups FindGroups(const Measured& measured);

// What it takes to bring so many bytes from one to the other.
CostMatrix CostsOf(const Measured& measured, std::int64_t bytes);

// Pairs of two groups that talk at once without sharing a member, as many as there are.
std::vector<std::pair<std::uint32_t, std::uint32_t>> PairsBetween(
    const std::vector<std::uint32_t>& one, const std::vector<std::uint32_t>& other);

// `names` are the members', in the order of ranks; `between`: bytes per second of all pairs from
// one group to another together, [from group][to group]. Errors: a number that is no bandwidth.
absl::StatusOr<Topology> TopologyOf(const std::vector<std::string>& names, const Measured& measured,
                                    const RankGroups& groups, const SquareMatrix& between);

// The same forest on a topology with as many members: what member r did, its member r does.
// InvalidArgument: their numbers differ, or switches sum.
absl::StatusOr<Forest> Transfer(const Topology& from, const Forest& forest, const Topology& to);

}  // namespace phub::plan
