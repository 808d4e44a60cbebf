// Reduction and multicast in the network (SwitchML: Sapio et al., "Scaling Distributed Machine
// Learning with In-Network Aggregation", NSDI 2021; for trees of switches Graham et al., "Scalable
// Hierarchical Aggregation Protocol", COMHPC 2016). Aggregating switches are vertices of the trees.
// A switch sums its children's partial sums and sends one partial sum to its parent, and multicasts
// results to its children. A member sends and receives each shard once, for any number of members:
// all data once in each direction, whereas exchanges between hosts take 2(N-1)/N of it.
//
// Every member is a home, which spreads the optimizer's work. A home's tree is a shortest-path
// tree. Among equally near parents, the one with the least loaded link is used, which spreads the
// trees over equal spines. Switches without members below are removed; switches with a single child
// become part of a path.
#include <algorithm>
#include <limits>
#include <utility>

#include "common/plan/planners/out_forest.h"
#include "common/plan/planners/planner.h"
#include "fmt/core.h"

namespace phub::plan {
namespace {

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

class Grower {
 public:
  explicit Grower(const Topology& topology)
      : topology_(topology), load_(topology.links().size(), 0) {}

  absl::StatusOr<OutForest> Grow() {
    OutForest forest;
    forest.share_unit = static_cast<std::int64_t>(topology_.members().size());
    for (const NodeIndex home : topology_.members()) {
      if (!Spread(home))
        return absl::FailedPreconditionError(
            "some members can be reached only through other members");
      forest.trees.push_back(Contract(home));
    }
    return forest;
  }

 private:
  // Breadth-first search from the home. Members are leaves unless they forward.
  bool Spread(NodeIndex home) {
    parent_.assign(topology_.nodes().size(), LinkIndex{kNone});
    depth_.assign(topology_.nodes().size(), kNone);
    depth_[home.value] = 0;
    order_.assign(1, home);
    for (std::size_t begin = 0, end = 1; begin < end; begin = end, end = order_.size()) {
      for (std::size_t i = begin; i < end; ++i) {
        const NodeIndex node = order_[i];
        if (node != home && topology_.IsMember(node) && !topology_.members_forward()) continue;
        for (const LinkIndex link : topology_.OutLinks(node)) Offer(link);
      }
    }
    return std::all_of(topology_.members().begin(), topology_.members().end(),
                       [&](NodeIndex member) { return depth_[member.value] != kNone; });
  }

  void Offer(LinkIndex index) {
    const Link& link = topology_.link(index);
    const std::uint32_t depth = depth_[link.from.value] + 1;
    if (depth_[link.to.value] == kNone) {
      depth_[link.to.value] = depth;
      parent_[link.to.value] = index;
      order_.push_back(link.to);
    } else if (depth_[link.to.value] == depth && IsLighter(index, parent_[link.to.value])) {
      parent_[link.to.value] = index;
    }
  }

  bool IsLighter(LinkIndex a, LinkIndex b) const {
    return Wide{load_[a.value]} * topology_.link(b).capacity <
           Wide{load_[b.value]} * topology_.link(a).capacity;
  }

  // Keeps members and switches with several children as vertices; other switches become part of
  // paths.
  OutTree Contract(NodeIndex home) {
    std::vector<std::uint32_t> children(topology_.nodes().size(), 0);
    std::vector<bool> is_needed(topology_.nodes().size(), false);
    for (std::size_t i = order_.size(); i-- > 1;) {  // children come before their parents
      const NodeIndex node = order_[i];
      is_needed[node.value] = is_needed[node.value] || topology_.IsMember(node);
      if (!is_needed[node.value]) continue;
      const Link& link = topology_.link(parent_[node.value]);
      is_needed[link.from.value] = true;
      ++children[link.from.value];
      ++load_[parent_[node.value].value];
    }
    OutTree tree{home, 1, {}};
    const auto is_vertex = [&](NodeIndex node) {
      const NodeKind kind = topology_.node(node).kind;
      return kind == NodeKind::kMember ||
             (kind == NodeKind::kAggregator && children[node.value] > 1);
    };
    for (const NodeIndex node : order_) {
      if (node == home || !is_needed[node.value] || !is_vertex(node)) continue;
      OutEdge edge{node, node, 0, {}};
      do {
        edge.path.push_back(parent_[edge.from.value]);
        edge.from = topology_.link(edge.path.back()).from;
      } while (!is_vertex(edge.from));
      std::reverse(edge.path.begin(), edge.path.end());
      tree.edges.push_back(std::move(edge));
    }
    StepsByDepth(tree);
    return tree;
  }

  const Topology& topology_;
  std::vector<std::int64_t> load_;  // by link: trees that use it
  std::vector<LinkIndex> parent_;
  std::vector<std::uint32_t> depth_;
  std::vector<NodeIndex> order_;
};

absl::Status InSwitchApplies(const Topology& topology) {
  if (!topology.HasAggregators())
    return absl::FailedPreconditionError(
        "the topology has no aggregating switch (option ',aggregate')");
  const std::size_t count = topology.members().size();
  if (2 * count * topology.nodes().size() > kEdgesMax)
    return absl::FailedPreconditionError(
        fmt::format("{} members may need more than {} edges", count, kEdgesMax));
  return absl::OkStatus();
}

absl::StatusOr<Forest> PlanInSwitch(const Topology& topology, const PlannerOptions&) {
  return GrowBothPhases(topology, "in-switch",
                        [](const Topology& direction) { return Grower(direction).Grow(); });
}

}  // namespace

Planner InSwitchPlanner() {
  return {"in-switch", "aggregating switches sum on the way up and multicast on the way down",
          InSwitchApplies, PlanInSwitch};
}

}  // namespace phub::plan
