// Routes transfers for planners that do not choose links themselves: over a shortest path, counted
// in links. If several next links are on a shortest path, the receiver's rank modulo their number
// selects one. This is static routing by destination, as in fat trees ("D-mod-K"). Paths pass
// through members only if the topology's members forward.
//
// One thread: distances are computed on first use and cached.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/forest.h"
#include "common/plan/topology.h"

namespace phub::plan {

class Router {
 public:
  explicit Router(const Topology& topology);

  // nullopt if there is no path. REQUIRES: from != to.
  std::optional<Path> Route(NodeIndex from, NodeIndex to);
  // In links; nullopt if there is no path.
  std::optional<std::uint32_t> Distance(NodeIndex from, NodeIndex to);

 private:
  const std::vector<std::uint16_t>& DistancesTo(NodeIndex to);

  const Topology& topology_;
  std::vector<std::vector<std::uint16_t>> distance_to_;  // [to][from], empty until first use
};

// The forest with every node replaced by place(node) of `topology`, and its edges routed there.
absl::StatusOr<Forest> Reroute(const Forest& forest, const Topology& topology,
                               const std::function<NodeIndex(NodeIndex)>& place);

}  // namespace phub::plan
