// Helps planners that work with ranks: adds edges between members, routed by Router. Where members
// reach each other only through members that relay, edges become chains (planners/relay.h). One
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/forest.h"
#include "common/plan/routes.h"

namespace phub::plan {

// OK if a forest of one tree per member has at most kEdgesMax edges.
absl::Status CheckEdges(const Topology& topology);
// CheckEdges, and every member can send to every other member without passing through hosts.
absl::Status CheckAllPairs(const Topology& topology);

// The members in the order of ranks.
std::vector<NodeIndex> NaturalOrder(const Topology& topology);

class RankForest {
 public:
  // order[i] takes position i of the exchange. REQUIRES: CheckEdges.
  RankForest(const Topology& topology, std::string_view planner, std::vector<NodeIndex> order,
             std::int64_t share_unit);

  // Adds a tree. Later calls add edges to it.
  void AddTree(std::size_t home, std::int64_t share);
  void Reduce(std::size_t from, std::size_t to, std::uint32_t step);
  void Gather(std::size_t from, std::size_t to, std::uint32_t step);
  // Adds a reduce edge at `step` and the opposite gather edge at step 2*steps-1-step. Each phase
  // takes `steps` steps.
  void Mirror(std::size_t from, std::size_t to, std::uint32_t step, std::uint32_t steps);
  Forest Take();

 private:
  Edge Route(std::size_t from, std::size_t to, std::uint32_t step);

  const Topology& topology_;
  bool is_relayed_ = false;  // some edge has no route: Take() replaces all edges by chains
  Forest forest_;
  PathTable paths_;
  Router router_;
  std::vector<NodeIndex> order_;
  std::unordered_map<std::uint64_t, PathIndex> known_;  // from, to
};

// Position i exchanges with positions i xor 2^s; see common/plan/planners/halving_doubling.cc.
Forest HalvingDoublingForest(const Topology& topology, std::string_view planner,
                             std::vector<NodeIndex> order);

// Groups of members on the same switch: for each group, the ranks of its members in ascending
// order. A member on several switches belongs to the first.
std::vector<std::vector<std::uint32_t>> GroupsBySwitch(const Topology& topology);

}  // namespace phub::plan
