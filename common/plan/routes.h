// Which links a transfer takes when a planner does not choose them itself: a shortest path, counted
// in links. Where several next links are on a shortest path, the receiver's rank modulo their
// number picks one: forwarding tables by destination, the static routing of fat trees ("D-mod-K").
// Members are passed through only where the topology says that they forward.
//
// One thread: distances are computed on first use and kept.
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

  // Nothing if no way leads there. from != to.
  std::optional<Path> Route(NodeIndex from, NodeIndex to);
  // In links; nothing if no way leads there.
  std::optional<std::uint32_t> Distance(NodeIndex from, NodeIndex to);

 private:
  const std::vector<std::uint16_t>& DistancesTo(NodeIndex to);

  const Topology& topology_;
  std::vector<std::vector<std::uint16_t>> distance_to_;  // [to][from], empty until asked for
};

// The forest with place(node) of `topology` for each node, its edges routed there.
absl::StatusOr<Forest> Reroute(const Forest& forest, const Topology& topology,
                               const std::function<NodeIndex(NodeIndex)>& place);

}  // namespace phub::plan
