// The searches behind spine_shares.h. Deterministic: they count work, not time. One thread.
#pragma once

#include <cstdint>
#include <optional>

#include "common/plan/groups/share_table.h"

namespace phub::plan {

struct SingleSpines {
  std::optional<ShareTable> table;  // absent: there is no such table, or the search was cut short
  bool is_proven = false;           // the search was complete
};

// One spine for each group: first fit, then backtracking, where next is the group that fits on the
// fewest spines.
SingleSpines SearchSingleSpines(const ShareProblem& problem);

// The best table found with groups on several spines. Always within the room, since every group can
// be divided among all spines by weight. Stops early at `pairs_least` pairs.
ShareTable SearchDividedShares(const ShareProblem& problem, std::int64_t pairs_least);

}  // namespace phub::plan
