// For planners that grow out-trees for the gather phase and reverse them for the reduce phase.
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

// Sets each edge's step to the depth of its sender, the first possible step. REQUIRES: edges are in
// the order in which the tree grew.
void StepsByDepth(OutTree& tree);

// Pairs reduce trees, which were grown on the reversed topology, with gather trees. The trees of
// each home are split into common shares.
absl::StatusOr<Forest> PairPhases(const Topology& topology, std::string_view planner,
                                  const OutForest& reversed_reduce, const OutForest& gather);

// The reduce phase is the reversed gather phase over the mirrors of its links. REQUIRES: every link
// has a mirror.
absl::StatusOr<Forest> MirrorPhase(const Topology& topology, std::string_view planner,
                                   const OutForest& gather);

// Grows the gather phase on the topology. If every link has a mirror, the reduce phase is the
// reversed gather phase over the mirrors. Otherwise the reduce phase is grown on the reversed
// topology, and the trees of each home are split into common shares and paired.
absl::StatusOr<Forest> GrowBothPhases(
    const Topology& topology, std::string_view planner,
    const std::function<absl::StatusOr<OutForest>(const Topology&)>& grow);

}  // namespace phub::plan
