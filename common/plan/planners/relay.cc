#include "common/plan/planners/relay.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/plan/planners/out_forest.h"
#include "common/plan/routes.h"

namespace phub::plan {
namespace {

// Grows trees for one direction.
class Relayer {
 public:
  // `reversed`: the topology with every link reversed. REQUIRES: members forward.
  Relayer(const Topology& topology, const Topology& reversed)
      : topology_(topology), backwards_(reversed) {}

  // `edges`: away from the home, parents before their children.
  OutTree TreeOf(NodeIndex home, std::int64_t share, const std::vector<Edge>& edges) {
    OutTree tree{home, share, {}};
    std::vector<bool> is_joined(topology_.nodes().size(), false);
    is_joined[home.value] = true;
    for (const Edge& edge : edges) {
      if (is_joined[edge.to.value]) continue;
      std::vector<OutEdge> chain = ChainTo(edge.to, edge.from, is_joined);
      for (auto next = chain.rbegin(); next != chain.rend(); ++next) {
        is_joined[next->to.value] = true;
        tree.edges.push_back(std::move(*next));
      }
    }
    StepsByDepth(tree);
    return tree;
  }

 private:
  // The route between the members, split at members, from the receiver back to a member of the
  // tree. Backwards, so that all routes from one sender form a tree.
  std::vector<OutEdge> ChainTo(NodeIndex to, NodeIndex from, const std::vector<bool>& is_joined) {
    const std::optional<Path> route = backwards_.Route(to, from);
    PHUB_CHECK(route.has_value(), "from={} to={}", from.value, to.value);  // it is connected
    std::vector<OutEdge> chain;
    Path path;
    for (const LinkIndex link : *route) {
      path.insert(path.begin(), link);
      const NodeIndex sender = topology_.link(link).from;
      if (!topology_.IsMember(sender)) continue;
      chain.push_back({sender, to, 0, std::exchange(path, {})});
      if (is_joined[sender.value]) break;
      to = sender;
    }
    return chain;
  }

  const Topology& topology_;
  Router backwards_;
};

Topology WithForwarding(const Topology& topology) {
  TopologyParts parts = topology.parts();
  parts.members_forward = true;
  absl::StatusOr<Topology> forwarding = Topology::Create(std::move(parts));
  PHUB_CHECK(forwarding.ok(), "status={}", forwarding.status().ToString());
  return *std::move(forwarding);
}

}  // namespace

Forest Relay(const Topology& topology, const Forest& forest) {
  const auto grow = [&](const Topology& direction, const Topology& opposite, bool reduces) {
    Relayer relayer(direction, opposite);
    OutForest grown{forest.share_unit, {}};
    for (const Tree& tree : forest.trees) {
      std::vector<Edge> edges = reduces ? tree.reduce : tree.gather;
      std::stable_sort(edges.begin(), edges.end(), [&](const Edge& a, const Edge& b) {
        return reduces ? a.step > b.step : a.step < b.step;
      });
      if (reduces)
        for (Edge& edge : edges) std::swap(edge.from, edge.to);
      grown.trees.push_back(relayer.TreeOf(tree.home, tree.share, edges));
    }
    return grown;
  };
  const Topology forwarding = WithForwarding(topology);
  const Topology reversed = forwarding.Reversed();
  absl::StatusOr<Forest> paired =
      PairPhases(topology, forest.planner, grow(reversed, forwarding, true),
                 grow(forwarding, reversed, false));
  // Equal shares, and no more edges than a forest between all pairs has.
  PHUB_CHECK(paired.ok(), "status={}", paired.status().ToString());
  return *std::move(paired);
}

}  // namespace phub::plan
