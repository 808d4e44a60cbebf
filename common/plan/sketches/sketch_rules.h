// Rules of a sketch that a topology cannot express: which members send to other groups of members,
// whose data they send, in which order, and how trees must look. Plain values; any thread.
//
// Members are in groups, such as the GPUs of a node or the hosts of a rack. A member's place is its
// number within its group. A *crossing* is a transfer between members of different groups; members
// that a path passes through are its senders and receivers, too. A crossing is correct if
//  - `pairs` has the places of its sender and receiver;
//  - `carries` has the place of the tree's home in the list of the sender's place;
//  - with `may_return` false: it does not take a result back into the home's group, and no partial
//    sum out of it;
//  - with `own_first`: on every path, results of trees whose home is the sender come before all
//    others, and partial sums for the receiver as the home come after all others.
// Both phases follow the same rules: a plan that only mirrors its gather phase remains correct if
// `pairs` is symmetric.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/forest.h"
#include "common/plan/sketches/taccl_sketch.h"
#include "common/plan/topology.h"

namespace phub::plan {

struct SketchRules {
  bool IsEmpty() const;  // every plan follows them
  bool IsCrossing(std::uint32_t from, std::uint32_t to) const {
    return !group_of.empty() && group_of[from] != group_of[to];
  }
  // All arguments are ranks.
  bool MaySend(std::uint32_t from, std::uint32_t to) const;
  // Whether the transfer is allowed in the tree of `home`. Includes MaySend.
  bool MayCarry(std::uint32_t home, std::uint32_t from, std::uint32_t to, bool reduces) const;

  std::vector<std::uint32_t> group_of;  // by rank; empty: all members are in one group
  std::vector<std::uint32_t> place_of;
  std::optional<std::set<std::pair<std::uint32_t, std::uint32_t>>> pairs;   // absent: all
  std::optional<std::map<std::uint32_t, std::set<std::uint32_t>>> carries;  // absent: all data
  bool may_return = true;
  bool own_first = false;

  // The plan is symmetric under these rotations: they map trees to trees.
  std::vector<Rotation> rotations;
  std::uint32_t trees_per_member = 0;  // with equal shares; 0: any number
  PlanPreference preference = PlanPreference::kAny;
};

// Sets groups of `size` consecutive ranks.
void SetGroups(SketchRules& rules, std::uint32_t members, std::uint32_t size);

// r -> (r + offset) mod block, in each block of ranks.
std::uint32_t Rotated(const Rotation& rotation, std::uint32_t rank);

// Whether a permutation of ranks maps groups to groups and preserves the rules about crossings.
bool IsInvariant(const SketchRules& rules, const std::vector<std::uint32_t>& image_of);

// OK if the plan follows the rules, except `preference`, which compares plans. The error names the
// tree, the edge and the rule. REQUIRES: the plan is valid (common/plan/verifier.h).
absl::Status CheckRules(const Topology& topology, const Forest& forest, const SketchRules& rules);

}  // namespace phub::plan
