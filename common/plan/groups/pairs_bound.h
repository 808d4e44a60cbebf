// Lower bounds for the pairs of a cable and a group (spine_shares.h). Pure; equal input gives equal
// output.
#pragma once

#include <cstdint>

#include "common/plan/groups/share_table.h"

namespace phub::plan {

// No table within the room has fewer pairs. At each leaf the groups are items that are packed into
// cables and may be cut: items of one size that fill cables of one size need at least as many
// pieces as any partition into connected parts.
std::int64_t LeastPairs(const ShareProblem& problem);

// A higher bound, for problems that have no table with one spine for each group. It knows that a
// group has the same spines at all of its leaves:
//  - Leaves without any room left are linear equations for the shares of the groups on a spine. A
//    group whose share they determine is on all spines, as in the table that divides every group
//    among all spines.
//  - A group on a single spine keeps others that share a leaf with it off its cables. An exact
//    search finds the most pairs that groups on single spines can save, under a condition that is
//    necessary and not sufficient: the cables of each leaf can take what its groups still need.
//    All other groups are on two spines or more. If the search exceeds its limit of work, only
//    the first bound counts.
// It cannot be exact in general, because groups on two spines may also exclude each other.
std::int64_t LeastDividedPairs(const ShareProblem& problem);

}  // namespace phub::plan
