// The plans of groups on FRED's network: each group has its own middle networks (fred.h). Pure.
//
// A group reduces to a home and gathers from it, like every plan of phub, while FRED's own
// all-reduce turns around inside the network. Links between switches therefore carry up to twice
// the data of their group: once as partial sums, and once as results.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/forest.h"
#include "common/plan/groups/fred.h"
#include "common/plan/groups/groups.h"

namespace phub::plan {

struct FredTurns {
  std::vector<std::uint32_t> turn_of;               // by group
  std::vector<std::vector<std::uint32_t>> middles;  // by group, as FredRoutes::middles
  std::uint32_t turns = 1;
  bool is_proven = true;  // no search was cut short
};

// Routes all groups in one turn if that is possible. Otherwise each group joins the first turn in
// which it can be routed together with the groups before it.
FredTurns RouteGroups(const FredShape& shape, const std::vector<const Group*>& groups);

absl::StatusOr<Forest> FredForest(const Topology& topology, const FredShape& shape,
                                  const Group& group, std::span<const std::uint32_t> middles,
                                  std::span<const NodeIndex> homes);

}  // namespace phub::plan
