// Helps planners that think in ranks: edges between members, routed by the Router. One thread.
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

// OK if every member can send to every other without another member passing it on, and a forest of
// one tree per member stays within kEdgesMax.
absl::Status CheckAllPairs(const Topology& topology);

// The members' own order.
std::vector<NodeIndex> NaturalOrder(const Topology& topology);

class RankForest {
 public:
  // Position i of the exchange is taken by order[i]. Requires CheckAllPairs.
  RankForest(const Topology& topology, std::string_view planner, std::vector<NodeIndex> order,
             std::int64_t share_unit);

  // Later calls refer to the tree added last.
  void AddTree(std::size_t home, std::int64_t share);
  void Reduce(std::size_t from, std::size_t to, std::uint32_t step);
  void Gather(std::size_t from, std::size_t to, std::uint32_t step);
  // Adds the reduce edge and, mirrored in time, the gather edge back: together they take `steps`
  // steps each, and step s up becomes step 2*steps-1-s down.
  void Mirror(std::size_t from, std::size_t to, std::uint32_t step, std::uint32_t steps);
  Forest Take() { return std::move(forest_); }

 private:
  Edge Route(std::size_t from, std::size_t to, std::uint32_t step);

  Forest forest_;
  PathTable paths_;
  Router router_;
  std::vector<NodeIndex> order_;
  std::unordered_map<std::uint64_t, PathIndex> known_;  // from, to
};

// Position i exchanges with positions i xor 2^s: common/plan/planners/halving_doubling.cc.
Forest HalvingDoublingForest(const Topology& topology, std::string_view planner,
                             std::vector<NodeIndex> order);

// Members by the switch they hang on: for each group the ranks of its members, in order. A member
// on several switches belongs to the first.
std::vector<std::vector<std::uint32_t>> GroupsBySwitch(const Topology& topology);

}  // namespace phub::plan
