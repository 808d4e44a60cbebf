// Double binary trees (Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth
// broadcast, reduction and scan", Parallel Computing 2009). One binary tree uses the network badly:
// in the first phase its leaves only send, and inner nodes receive twice as much as they send. Two
// trees with half of the data each balance this, if the leaves of one are inner nodes of the other:
// every member is an inner node of at most one tree.
//
// The first tree numbers its nodes in-order: rank r is at the height of the lowest set bit of r+1.
// The second tree is its mirror image for an even number of members, and the first tree shifted by
// one rank for an odd number. The depth is logarithmic. Full bandwidth needs many pieces in flight.
#include <algorithm>

#include "common/plan/planners/planner.h"
#include "common/plan/planners/rank_forest.h"

namespace phub::plan {
namespace {

struct Arc {
  std::size_t from;
  std::size_t to;
  std::uint32_t step;
};

// Appends the arcs of the balanced in-order tree over [first, last) and returns its root. A node
// sends after it has received from its children. The second child waits for the first: a parent
// receives one at a time. Sets `ready` to the first step in which the root could send.
std::size_t InOrderTree(std::size_t first, std::size_t last, std::vector<Arc>& arcs,
                        std::uint32_t& ready) {
  // The root is at the largest power of two that is at most the size (1-based). The left subtree is
  // then a perfect tree.
  const std::size_t size = last - first;
  std::size_t half = 1;
  while (half * 2 <= size) half *= 2;
  const std::size_t root = first + half - 1;
  ready = 0;
  for (const auto& [begin, end] : {std::pair{first, root}, std::pair{root + 1, last}}) {
    if (begin == end) continue;
    std::uint32_t child_ready = 0;
    const std::size_t child = InOrderTree(begin, end, arcs, child_ready);
    const std::uint32_t step = std::max(child_ready, ready);
    arcs.push_back({child, root, step});
    ready = step + 1;
  }
  return root;
}

absl::StatusOr<Forest> PlanDoubleBinaryTree(const Topology& topology, const PlannerOptions&) {
  const std::size_t count = topology.members().size();
  std::vector<Arc> arcs;
  std::uint32_t steps = 0;
  const std::size_t root = InOrderTree(0, count, arcs, steps);
  RankForest forest(topology, "double-binary-tree", NaturalOrder(topology), 2);
  for (const bool second : {false, true}) {
    const auto place = [&](std::size_t rank) {
      if (!second) return rank;
      return count % 2 == 0 ? count - 1 - rank : (rank + 1) % count;
    };
    forest.AddTree(place(root), 1);
    for (const Arc& arc : arcs) forest.Mirror(place(arc.from), place(arc.to), arc.step, steps);
  }
  return forest.Take();
}

}  // namespace

Planner DoubleBinaryTreePlanner() {
  return {
      "double-binary-tree",
      "two balanced trees with half of the data each; leaves of one are inner nodes of the other",
      CheckEdges, PlanDoubleBinaryTree};
}

}  // namespace phub::plan
