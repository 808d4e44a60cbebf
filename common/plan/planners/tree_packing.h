// Packs spanning trees into capacities: `supply` trees out of every member, as many at a time as
// can share their edges (see planners/packing.cc). One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/planners/out_forest.h"
#include "common/plan/planners/switch_removal.h"
#include "common/plan/topology.h"

namespace phub::plan {

// Trees with shares in 1/(members * supply); edges in the order of growth, steps by depth. Requires
// a flow of members * supply from a source that gives `supply` to each member, to every member.
absl::StatusOr<OutForest> PackTrees(
    const Topology& topology, std::vector<PathEdge> edges, std::int64_t supply,
    const std::function<void(std::size_t done, std::size_t total)>& progress);

}  // namespace phub::plan
