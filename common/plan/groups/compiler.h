// Compiles the exchanges of groups: one plan for each group, chosen jointly for all groups of a
// phase. Aggregating switches sum and multicast, so every member's link carries the data of its
// group once in each direction. Pure; equal input gives equal output.
//
// The network has leaves and spines (leaf_spine.h), or it is FRED's (fred.h):
//  - leaves and spines: each group's data are divided among spines (spine_shares.h). The load is
//    kept within the bound, or within the time that members need for their own links if that is
//    longer, since more spines would then save no time;
//  - FRED: each group has its own path through the switches, and no two groups of a turn share a
//    port. If a phase has no such paths, groups take turns.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/forest.h"
#include "common/plan/groups/groups.h"
#include "common/plan/groups/spine_shares.h"
#include "common/plan/rational.h"

namespace phub::plan {

struct GroupSpine {
  NodeIndex spine;
  Rational share;
};

struct CompiledGroup {
  std::vector<NodeIndex> leaves;
  std::vector<GroupSpine> spines;  // empty: inside one leaf, or not a network of leaves and spines
  std::uint32_t turn = 0;          // FRED only
  std::size_t slots = 0;           // (tree, aggregating switch) in which the group sums
  Forest forest;
  double seconds_alone = 0;
  double seconds_together = 0;  // while all groups of the phase (and turn) exchange
};

struct CompiledPhase {
  Phase phase = Phase::kTensor;
  std::vector<std::uint32_t> groups;  // indices
  std::size_t crossing = 0;           // groups with members under several leaves
  // Times of the busiest link, in times of `bytes` on a unit link.
  Rational load;          // cables between leaves and spines (FRED: all links)
  Rational bound;         // lower bound of `load` for any division; 0 for FRED
  Rational members_load;  // links of members
  std::int64_t pairs = 0;
  std::int64_t pairs_least = 0;
  // Leaves and spines: ports that two or more groups of the phase use. FRED: groups that must wait
  // for another turn than the first.
  std::int64_t conflicts = 0;
  std::uint32_t turns = 1;  // FRED only
  bool is_proven = true;    // FRED: the search for routes was complete
  double seconds = 0;       // all groups
};

struct CompiledGroups {
  std::int64_t bytes = 0;             // the data of the largest group
  bool takes_turns = false;           // FRED
  std::vector<CompiledGroup> groups;  // as given
  std::vector<CompiledPhase> phases;  // those that have groups
};

struct CompilerOptions {
  // Keep the load of cables within the bound, even if members need longer for their own links.
  bool least_load = false;
  std::uint32_t pieces = 64;  // for the simulated times, fewer if there are too many transfers
};

// REQUIRES: groups as from ParallelGroups or ParseGroupsToml for the same topology. Every plan is
// verified.
absl::StatusOr<CompiledGroups> CompileGroups(const Topology& topology,
                                             std::span<const Group> groups,
                                             const CompilerOptions& options);

}  // namespace phub::plan
