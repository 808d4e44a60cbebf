// Replaces plain switches by direct edges between their neighbours, without reducing the maximum
// flow to any member. A step of packing spanning trees (see planners/packing.cc). One thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/forest.h"
#include "common/plan/topology.h"

namespace phub::plan {

// Capacity from one member to another over one physical path.
struct PathEdge {
  NodeIndex from;
  NodeIndex to;
  std::int64_t capacity = 0;
  Path path;
};

// `capacities`: by link. `supply`: the capacity of an edge from a source to every member. REQUIRES:
// the minimum over all members of the maximum flow from the source is members * supply, and the
// capacities into and out of every switch are equal. The flow is the same over the returned edges.
// (Bang-Jensen, Frank and Jackson 1995: an edge into a switch with balanced capacities and an edge
// out of it can be split off together.)
absl::StatusOr<std::vector<PathEdge>> RemoveSwitches(const Topology& topology,
                                                     const std::vector<std::int64_t>& capacities,
                                                     std::int64_t supply);

}  // namespace phub::plan
