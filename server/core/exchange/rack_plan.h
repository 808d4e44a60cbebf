// An exchange plan from one rack's view: for each tree, its parents and children for partial sums
// and for new parameters. Made from a verified forest.
//
// Racks are the members of the forest's topology, in its order, followed by its aggregators, if
// they are daemons. A tree's sum is a left fold. Every rack starts with its own sum (over its ranks
// in rank order; an aggregator has none) and adds the partial sums of its children in the plan's
// order (by step, then as the plan lists them). Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/plan/forest.h"
#include "common/plan/topology.h"
#include "server/core/lane_owner.h"

namespace phub::server::exchange {

inline constexpr std::uint64_t RackBit(RackIndex rack) { return std::uint64_t{1} << rack.value; }

struct ReduceChild {
  RackIndex rack{};
  std::uint64_t subtree = 0;  // bit per rack whose sum its partial sum contains
};

struct RackTree {
  RackIndex home{};
  std::optional<RackIndex> reduce_parent;    // none at the home
  std::optional<RackIndex> gather_parent;    // none at the home
  std::vector<ReduceChild> reduce_children;  // in the order of folding
  std::vector<RackIndex> gather_children;    // in the order of sending
};

struct RackPlan {
  RackIndex self{};
  std::uint32_t rack_count = 0;
  bool aggregates = false;  // an aggregator: it has no ranks and sums only its children's partials
  std::vector<RackTree> trees;
  std::vector<double> shares;   // [tree], sum 1
  std::uint64_t neighbors = 0;  // bit per rack that shares an edge of some tree with this one
  // Bit per rack that shares an edge of some tree with any rack. Only an aggregator may have none.
  std::uint64_t participants = 0;

  bool TakesPart(RackIndex rack) const { return (participants & RackBit(rack)) != 0; }
};

// `aggregators`: a daemon acts as each aggregating switch. They are the racks after all members, in
// the order of the topology's nodes. REQUIRES: plan::Verify accepted the forest. InvalidArgument:
// the plan sums in switches without a daemon, or there are more than kRacksMax racks.
absl::StatusOr<RackPlan> MakeRackPlan(const plan::Topology& topology, const plan::Forest& forest,
                                      RackIndex self, bool aggregators = false);
// The number of aggregating switches, and the node of a rack or aggregator.
std::uint32_t AggregatorCount(const plan::Topology& topology);
plan::NodeIndex NodeOf(const plan::Topology& topology, RackIndex rack);

// Chooses the tree of each chunk: the tree that is furthest behind its share of the bytes so far.
// Every rack calls it in the same order (chunk indices of one core loop) and gets the same results.
class TreeChooser {
 public:
  // `core`: the core loops start with different trees, so that ties are spread over the trees.
  TreeChooser(const RackPlan& plan, CoreIndex core);
  std::uint32_t Next(std::uint64_t chunk_bytes);

 private:
  std::vector<double> shares_;
  std::vector<double> given_;  // [tree]: bytes so far
  double total_ = 0;
  std::uint32_t first_ = 0;
};

}  // namespace phub::server::exchange
