// Replaces plain switches by direct edges between their neighbours without making any member harder
// to reach: the first half of packing spanning trees (see planners/packing.cc). One thread.
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

// `capacities` by link, `supply` what the source gives to every member: the least flow from the
// source to a member must be members * supply, and still is over the edges that are returned (Bang-
// Jensen, Frank and Jackson 1995: an edge into a switch of balanced capacity and one out of it can
// be split off together). Capacities into and out of every switch must be equal.
absl::StatusOr<std::vector<PathEdge>> RemoveSwitches(const Topology& topology,
                                                     const std::vector<std::int64_t>& capacities,
                                                     std::int64_t supply);

}  // namespace phub::plan
