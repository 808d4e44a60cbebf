#include "common/plan/planners/relay.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/plan/planners/member_paths.h"
#include "common/plan/planners/out_forest.h"

namespace phub::plan {
namespace {

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

struct Hop {
  std::uint32_t from;  // ranks
  std::uint32_t to;
};

// Grows trees for one direction.
class Relayer {
 public:
  explicit Relayer(const Topology& topology)
      : topology_(topology), paths_(MemberPaths(topology, 1)), arrived_by_(paths_.size()) {}

  // `hops`: the edges of a tree, parents before their children.
  OutTree TreeOf(NodeIndex home, std::int64_t share, const std::vector<Hop>& hops) {
    OutTree tree{home, share, {}};
    std::vector<bool> is_joined(paths_.size(), false);
    is_joined[topology_.RankOf(home)] = true;
    std::vector<Arrival> chain;  // from the receiver back to a member of the tree
    for (const Hop& hop : hops) {
      chain.clear();
      for (std::uint32_t at = hop.to; !is_joined[at]; at = chain.back().from)
        chain.push_back(ArrivalsFrom(hop.from)[at]);
      for (auto arrival = chain.rbegin(); arrival != chain.rend(); ++arrival) {
        const MemberPath& path = paths_[arrival->from][arrival->path];
        is_joined[path.to] = true;
        tree.edges.push_back(
            {topology_.members()[arrival->from], topology_.members()[path.to], 0, path.links});
      }
    }
    StepsByDepth(tree);
    return tree;
  }

 private:
  // The last edge of a shortest chain.
  struct Arrival {
    std::uint32_t from = kNone;
    std::uint32_t path = 0;  // index into the sender's paths
  };

  // By rank of the receiver. Computed on first use.
  const std::vector<Arrival>& ArrivalsFrom(std::uint32_t root) {
    std::vector<Arrival>& arrivals = arrived_by_[root];
    if (!arrivals.empty()) return arrivals;
    arrivals.resize(paths_.size());
    std::vector<std::uint32_t> queue{root};
    for (std::size_t head = 0; head < queue.size(); ++head) {
      const std::uint32_t from = queue[head];
      for (std::uint32_t i = 0; i < paths_[from].size(); ++i) {
        const std::uint32_t to = paths_[from][i].to;
        if (to == root || arrivals[to].from != kNone) continue;
        arrivals[to] = {from, i};
        queue.push_back(to);
      }
    }
    return arrivals;
  }

  const Topology& topology_;
  std::vector<std::vector<MemberPath>> paths_;    // by rank of the sender
  std::vector<std::vector<Arrival>> arrived_by_;  // by rank of the first sender
};

}  // namespace

Forest Relay(const Topology& topology, const Forest& forest) {
  const Topology reversed = topology.Reversed();
  Relayer down(topology), up(reversed);
  OutForest gather, reduce;
  gather.share_unit = reduce.share_unit = forest.share_unit;
  for (const Tree& tree : forest.trees) {
    std::vector<Edge> edges = tree.gather;
    std::stable_sort(edges.begin(), edges.end(),
                     [](const Edge& a, const Edge& b) { return a.step < b.step; });
    std::vector<Hop> hops;
    for (const Edge& edge : edges)
      hops.push_back({topology.RankOf(edge.from), topology.RankOf(edge.to)});
    gather.trees.push_back(down.TreeOf(tree.home, tree.share, hops));
    edges = tree.reduce;
    std::stable_sort(edges.begin(), edges.end(),
                     [](const Edge& a, const Edge& b) { return a.step > b.step; });
    hops.clear();
    for (const Edge& edge : edges)
      hops.push_back({topology.RankOf(edge.to), topology.RankOf(edge.from)});
    reduce.trees.push_back(up.TreeOf(tree.home, tree.share, hops));
  }
  absl::StatusOr<Forest> paired = PairPhases(topology, forest.planner, reduce, gather);
  // Equal shares, and no more edges than a forest between all pairs has.
  PHUB_CHECK(paired.ok(), "status={}", paired.status().ToString());
  return *std::move(paired);
}

}  // namespace phub::plan
