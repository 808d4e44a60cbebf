// For planners that grow out-trees and let the reduce phase be the same backwards.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/forest.h"

namespace phub::plan {

struct OutEdge {
  NodeIndex from;
  NodeIndex to;
  std::uint32_t step = 0;
  Path path;
};

struct OutTree {
  NodeIndex home;
  std::int64_t share = 0;
  std::vector<OutEdge> edges;
};

struct OutForest {
  std::int64_t share_unit = 1;
  std::vector<OutTree> trees;
};

// Steps in which edges leave a vertex as soon as it has been reached: its depth in the tree.
// Requires edges in the order in which the tree grew.
void StepsByDepth(OutTree& tree);

// Grows the gather phase on the topology. Where every link has a mirror, the reduce phase is the
// gather phase backwards over the mirrors; else it is grown on the reversed topology, and the trees
// of each home are paired by cutting them to common shares.
absl::StatusOr<Forest> GrowBothPhases(
    const Topology& topology, std::string_view planner,
    const std::function<absl::StatusOr<OutForest>(const Topology&)>& grow);

}  // namespace phub::plan
