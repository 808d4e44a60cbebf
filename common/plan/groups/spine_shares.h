// Divides the data of groups among spines, for all groups of a phase together. A group's share on a
// spine passes each of the group's leaves once in each direction, over one cable.
//
// The load of a cable is its data divided by its capacity. No division has a lower greatest load
// than the bound: at each leaf, the data of all groups divided by the leaf's capacity to the
// spines. Dividing every group among all spines reaches it. Among the divisions whose load is at
// most `limit`, the one with the fewest pairs (cable, group) is wanted, since each pair costs
// messages and memory in a switch. With one spine for each group this is the colouring of a
// hypergraph: an exact search within a fixed limit of work decides whether it exists. Otherwise
// several heuristics search, and `pairs_least` is a lower bound. Pure; equal input gives equal
// output.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/groups/leaf_spine.h"
#include "common/plan/rational.h"

namespace phub::plan {

struct SpineDemand {
  std::vector<std::uint32_t> leaves;  // ascending, at least two
  std::int64_t bytes = 0;
};

struct SpineShare {
  std::uint32_t spine = 0;
  Rational share;  // part of the group's data
};

struct SpineShares {
  std::vector<std::vector<SpineShare>> by_group;  // by spine
  Rational load;                 // load of the busiest cable, in bytes per capacity
  std::int64_t pairs = 0;        // (cable, group)
  std::int64_t pairs_least = 0;  // no division within the limit has fewer
  std::int64_t conflicts = 0;    // cables with two or more groups
};

// The greatest load at a leaf, in bytes per capacity. 0 without groups. nullopt if the fraction
// exceeds 63 bits.
std::optional<Rational> LeafBound(const LeafSpine& network, std::span<const SpineDemand> groups);

// REQUIRES: limit >= LeafBound. Fails if the sizes and capacities have no common unit.
absl::StatusOr<SpineShares> DivideAmongSpines(const LeafSpine& network,
                                              std::span<const SpineDemand> groups,
                                              const Rational& limit);

}  // namespace phub::plan
