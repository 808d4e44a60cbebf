// Paths from member to member that pass through switches only. Members on the way are vertices of
// trees instead. Pure; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "common/plan/forest.h"
#include "common/plan/topology.h"

namespace phub::plan {

struct MemberPath {
  std::uint32_t to = 0;  // rank
  Path links;
};

// Shortest paths from the member with rank `from` to every member that it reaches through switches,
// at most `limit` for each receiver. With more equal paths, different pairs get different ones.
std::vector<MemberPath> MemberPaths(const Topology& topology, std::uint32_t from,
                                    std::size_t limit);

}  // namespace phub::plan
