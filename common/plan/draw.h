// Draws a plan as SVG: each tree on the topology, with edges along their links, coloured and
// numbered by step. Pure; any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/plan/forest.h"
#include "common/plan/topology.h"

namespace phub::plan {

// With a home, draws both phases of all trees of that home (at most kPanelsMax pictures). Without,
// draws the gather phase of the first trees. REQUIRES: Verify has accepted the forest.
inline constexpr std::size_t kPanelsMax = 16;
absl::StatusOr<std::string> DrawForest(const Topology& topology, const Forest& forest,
                                       std::string_view home);

// Draws the links that each plan uses in the plan's colour, all on one topology, and its members in
// the same colour (the last plan's colour if a member has several). REQUIRES: Verify has accepted
// the forests.
struct NamedForest {
  std::string name;
  Forest forest;
};
std::string DrawForests(const Topology& topology, std::span<const NamedForest> forests);

}  // namespace phub::plan
