// A plan as a picture (SVG): each tree on the topology, edges along the links they take, coloured
// and numbered by step. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/plan/forest.h"
#include "common/plan/topology.h"

namespace phub::plan {

// With a home: all of its trees, both phases (at most kPanelsMax pictures). Without: the gather
// phase of the first trees. The forest must have passed Verify on the topology.
inline constexpr std::size_t kPanelsMax = 16;
absl::StatusOr<std::string> DrawForest(const Topology& topology, const Forest& forest,
                                       std::string_view home);

}  // namespace phub::plan
