// Packs spanning trees into capacities: `supply` trees from every member. Equal trees are handled
// together as batches (see planners/packing.cc). One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/planners/out_forest.h"
#include "common/plan/planners/switch_removal.h"
#include "common/plan/topology.h"

namespace phub::plan {

// Returns trees with shares in 1/(members * supply), edges in the order of growth and steps by
// depth. REQUIRES: with a source that has an edge of capacity `supply` to each member, the maximum
// flow from the source to every member is members * supply.
absl::StatusOr<OutForest> PackTrees(
    const Topology& topology, std::vector<PathEdge> edges, std::int64_t supply,
    const std::function<void(std::size_t done, std::size_t total)>& progress);

}  // namespace phub::plan
