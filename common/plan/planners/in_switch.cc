// Reduction and multicast in the network (SwitchML: Sapio et al., "Scaling Distributed Machine
// Learning with In-Network Aggregation", NSDI 2021; for trees of switches Graham et al., "Scalable
// Hierarchical Aggregation Protocol", COMHPC 2016). Aggregating switches are vertices of the trees.
// A switch sums its children's partial sums and sends one partial sum to its parent, and multicasts
// results to its children. A member sends and receives each shard once, for any number of members:
// all data once in each direction, whereas exchanges between hosts take 2(N-1)/N of it.
//
// Every member is a home, which spreads the optimizer's work. A home's tree connects every member
// by a shortest path. Members join one by one, over the path with the least loaded links from the
// nearest vertices of the tree, so that a tree uses few links (Takahashi and Matsuyama 1980). If
// there are more equal paths than homes, for instance spines, one tree per home leaves some of them
// idle. Each home therefore gets several trees with equal shares, as few as balance the load. If
// bandwidths up and down differ, the trees of both phases are grown in turns.
#include <algorithm>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>

#include "common/plan/planners/out_forest.h"
#include "common/plan/planners/planner.h"
#include "fmt/core.h"

namespace phub::plan {
namespace {

constexpr std::size_t kRoundsMax = 16;
constexpr std::size_t kTreesMax = 4096;  // of more than one round
// One more round must reduce the time of the busiest link by this factor.
constexpr double kWorthwhile = 0.99;

using NextLink = std::pair<double, LinkIndex>;
constexpr NextLink kUnreached{std::numeric_limits<double>::infinity(), LinkIndex{kNoIndex}};

// How many trees use each link. The reversed topology has the same link indices, so both phases can
// share it.
class Loads {
 public:
  explicit Loads(const Topology& topology)
      : topology_(topology), trees_(topology.links().size(), 0) {}

  void Add(LinkIndex link) { ++trees_[link.value]; }

  // Trees over the link in both phases. If every link has a mirror, only the gather phase is grown,
  // and the reduce phase uses the mirrors.
  double TreesOver(LinkIndex link) const {
    std::int64_t trees = trees_[link.value];
    if (topology_.IsSymmetric()) trees += trees_[topology_.MirrorOf(link)->value];
    return static_cast<double>(trees);
  }

  double BusiestTime() const {
    double busiest = 0;
    for (std::uint32_t i = 0; i < trees_.size(); ++i)
      busiest = std::max(busiest, TreesOver(LinkIndex{i}) /
                                      static_cast<double>(topology_.link(LinkIndex{i}).capacity));
    return busiest;
  }

 private:
  const Topology& topology_;
  std::vector<std::int64_t> trees_;
};

// Grows out-trees for one phase.
class Grower {
 public:
  Grower(const Topology& topology, Loads& loads)
      : topology_(topology), loads_(loads), next_(topology.nodes().size(), kUnreached) {}

  // Returns whether the home reaches all members.
  bool GrowTree(NodeIndex home) {
    if (!Spread(home)) return false;
    forest_.trees.push_back(TreeOf(home));
    return true;
  }

  // The first `count` trees, with equal shares.
  OutForest Take(std::size_t count) {
    forest_.trees.resize(count);
    forest_.share_unit = static_cast<std::int64_t>(count);
    return std::move(forest_);
  }

 private:
  // Members are leaves unless they forward.
  bool IsInner(NodeIndex node) const {
    return node == home_ || !topology_.IsMember(node) || topology_.members_forward();
  }

  // Breadth-first search from the home. Returns whether it reaches all members.
  bool Spread(NodeIndex home) {
    home_ = home;
    depth_.assign(topology_.nodes().size(), kNoIndex);
    depth_[home.value] = 0;
    order_.assign(1, home);
    for (std::size_t head = 0; head < order_.size(); ++head) {
      if (!IsInner(order_[head])) continue;
      for (const LinkIndex link : topology_.OutLinks(order_[head])) {
        const NodeIndex next = topology_.link(link).to;
        if (depth_[next.value] != kNoIndex) continue;
        depth_[next.value] = depth_[order_[head].value] + 1;
        order_.push_back(next);
      }
    }
    return std::all_of(topology_.members().begin(), topology_.members().end(),
                       [&](NodeIndex member) { return depth_[member.value] != kNoIndex; });
  }

  OutTree TreeOf(NodeIndex home) {
    OutTree tree{home, 1, {}};
    segment_.assign(topology_.nodes().size(), {});
    child_count_.assign(topology_.nodes().size(), 0);
    is_joined_.assign(topology_.nodes().size(), false);
    is_joined_[home.value] = true;
    for (const NodeIndex node : order_)
      if (node != home && topology_.IsMember(node) && !is_joined_[node.value]) Join(node);
    Contract(tree);
    StepsByDepth(tree);
    return tree;
  }

  // The cost of one more tree on the link: a high power of its load, so that the busiest link of a
  // path decides. Only multiplications: equal on every platform.
  double CostOf(LinkIndex link) const {
    const auto capacity = static_cast<double>(topology_.link(link).capacity);
    const double time = (loads_.TreesOver(link) + 1) / capacity;
    const double cube = time * time * time;
    return cube * cube * cube * cube / capacity;
  }

  // Searches backwards from the member along shortest paths to the cheapest node of the tree that
  // can send. Plain switches only forward, so every path through them begins at another node.
  void Join(NodeIndex member) {
    using Entry = std::tuple<double, std::uint32_t, NodeIndex>;  // cost, arrival, node
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
    std::uint32_t arrivals = 0;
    std::vector<NodeIndex> reached{member};
    next_[member.value].first = 0;
    queue.emplace(0.0, arrivals++, member);
    while (!queue.empty()) {
      const auto [cost, arrival, node] = queue.top();
      queue.pop();
      if (cost > next_[node.value].first) continue;
      if (node != member && is_joined_[node.value]) {
        AddPath(node, member);
        break;
      }
      for (const LinkIndex link : topology_.InLinks(node)) {
        const NodeIndex from = topology_.link(link).from;
        if (depth_[from.value] == kNoIndex || depth_[from.value] + 1 != depth_[node.value])
          continue;
        const double total = cost + CostOf(link);
        if (!IsInner(from) || total >= next_[from.value].first) continue;
        if (next_[from.value] == kUnreached) reached.push_back(from);
        next_[from.value] = {total, link};
        queue.emplace(total, arrivals++, from);
      }
    }
    for (const NodeIndex node : reached) next_[node.value] = kUnreached;
  }

  // Adds the path from a node of the tree to the member. Nodes on it that can send join, too.
  void AddPath(NodeIndex node, NodeIndex member) {
    Path segment;
    while (node != member) {
      const LinkIndex link = next_[node.value].second;
      segment.push_back(link);
      loads_.Add(link);
      node = topology_.link(link).to;
      if (topology_.node(node).kind == NodeKind::kSwitch) continue;
      is_joined_[node.value] = true;
      ++child_count_[topology_.link(segment.front()).from.value];
      segment_[node.value] = std::exchange(segment, {});
    }
  }

  // Keeps members and switches with several children as vertices; other switches become part of
  // paths.
  void Contract(OutTree& tree) {
    const auto is_vertex = [&](NodeIndex node) {
      return topology_.IsMember(node) || child_count_[node.value] > 1;
    };
    for (const NodeIndex node : order_) {  // parents come before their children
      if (node == tree.home || !is_joined_[node.value] || !is_vertex(node)) continue;
      OutEdge edge{node, node, 0, {}};
      do {
        const Path& segment = segment_[edge.from.value];
        edge.path.insert(edge.path.begin(), segment.begin(), segment.end());
        edge.from = topology_.link(edge.path.front()).from;
      } while (!is_vertex(edge.from));
      tree.edges.push_back(std::move(edge));
    }
  }

  const Topology& topology_;
  Loads& loads_;
  OutForest forest_;
  // For the current tree, by node:
  NodeIndex home_;
  std::vector<std::uint32_t> depth_;  // distance from the home
  std::vector<NodeIndex> order_;      // by distance
  std::vector<bool> is_joined_;       // it is in the tree and can send
  std::vector<Path> segment_;         // the path from the node of the tree before it
  std::vector<std::uint32_t> child_count_;
  // While a member joins, by node: the cost to the member, and the next link.
  std::vector<NextLink> next_;
};

// All data leave and enter every member over its own links.
double LeastTime(const Topology& topology) {
  double least = 0;
  for (const NodeIndex member : topology.members()) {
    for (const auto& links : {topology.OutLinks(member), topology.InLinks(member)}) {
      double capacity = 0;
      for (const LinkIndex link : links)
        capacity += static_cast<double>(topology.link(link).capacity);
      least = std::max(least, 1 / capacity);
    }
  }
  return least;
}

// Gives every home a tree per grower and round. Returns the number of rounds to use, or 0 if some
// members cannot be reached.
std::size_t GrowRounds(const Topology& topology, const std::vector<Grower*>& growers,
                       const Loads& loads) {
  const std::size_t homes = topology.members().size();
  const std::size_t trees_max = std::min(kTreesMax, kEdgesMax / (2 * topology.nodes().size()));
  const std::size_t rounds_max = std::clamp<std::size_t>(trees_max / homes, 1, kRoundsMax);
  const double least = LeastTime(topology);
  double best = std::numeric_limits<double>::infinity();
  std::size_t best_rounds = 0;
  for (std::size_t round = 1; round <= rounds_max && best > least * (2 - kWorthwhile); ++round) {
    for (const NodeIndex home : topology.members())
      for (Grower* grower : growers)
        if (!grower->GrowTree(home)) return 0;
    const double time = loads.BusiestTime() / static_cast<double>(round * homes);
    if (time > best * kWorthwhile) continue;
    best = time;
    best_rounds = round;
  }
  return best_rounds;
}

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
  const Topology reversed = topology.Reversed();
  Loads loads(topology);
  Grower down(topology, loads), up(reversed, loads);
  // Both phases are grown together if they differ: a member's data for other homes and the results
  // of its own share leave over the same links.
  const bool is_mirrored = topology.IsSymmetric();
  const std::vector<Grower*> growers = is_mirrored ? std::vector{&down} : std::vector{&up, &down};
  const std::size_t rounds = GrowRounds(topology, growers, loads);
  if (rounds == 0)
    return absl::FailedPreconditionError("some members can be reached only through other members");
  const std::size_t count = rounds * topology.members().size();
  const OutForest gather = down.Take(count);
  return is_mirrored ? MirrorPhase(topology, "in-switch", gather)
                     : PairPhases(topology, "in-switch", up.Take(count), gather);
}

}  // namespace

Planner InSwitchPlanner() {
  return {"in-switch", "aggregating switches sum on the way up and multicast on the way down",
          InSwitchApplies, PlanInSwitch};
}

}  // namespace phub::plan
