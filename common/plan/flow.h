// Maximum flow in integers (Dinitz 1970: shortest augmenting paths, level by level), for the bound
// and for packing trees. One thread. The capacities of all edges out of a node, and into a node,
// must sum to less than 2^63. kUnlimited edges are exempt if Solve() has a finite limit.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace phub::plan {

class FlowNetwork {
 public:
  static constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max() / 4;

  explicit FlowNetwork(std::size_t node_count = 0) : adjacent_(node_count) {}

  std::uint32_t AddNode();
  std::uint32_t AddEdge(std::uint32_t from, std::uint32_t to, std::int64_t capacity);
  void SetCapacity(std::uint32_t edge, std::int64_t capacity) { capacity_[edge] = capacity; }
  std::int64_t capacity(std::uint32_t edge) const { return capacity_[edge]; }
  // ReturnTo() removes the nodes and edges that were added after a mark.
  struct Mark {
    std::size_t nodes;
    std::size_t edges;
  };
  Mark Here() const { return {adjacent_.size(), capacity_.size()}; }
  void ReturnTo(Mark mark);

  // Returns the maximum flow, or `limit` if the flow is at least that. Keeps the capacities.
  std::int64_t Solve(std::uint32_t source, std::uint32_t sink, std::int64_t limit);
  // Whether a node is on the source's side of the minimum cut. REQUIRES: Solve() returned less than
  // its limit.
  bool IsOnSourceSide(std::uint32_t node) const { return level_[node] != kUnreached; }

 private:
  static constexpr std::uint32_t kUnreached = std::numeric_limits<std::uint32_t>::max();

  bool BuildLevels(std::uint32_t source, std::uint32_t sink);
  std::int64_t Augment(std::uint32_t source, std::uint32_t sink, std::int64_t limit);

  // Arc 2e is edge e; arc 2e+1 is its residual arc in the opposite direction.
  std::vector<std::vector<std::uint32_t>> adjacent_;  // arcs by node
  std::vector<std::uint32_t> target_;                 // by arc
  std::vector<std::int64_t> residual_;                // by arc
  std::vector<std::int64_t> capacity_;                // by edge
  std::vector<std::uint32_t> level_, next_, queue_, path_;
};

}  // namespace phub::plan
