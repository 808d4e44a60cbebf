// An exchange plan as one rack sees it: for each tree, whom it waits for, where its partial sums
// go, from where new parameters come and to whom it passes them on. Made from a verified forest.
//
// Racks are the members of the forest's topology, in its order, and then its aggregators, if
// daemons stand for them. A tree's sum is a left fold: at every rack first its own sum (of its
// ranks, in rank order; an aggregator has none), then the partials of its children in the plan's
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
  std::uint64_t subtree = 0;  // bit per rack whose sum its partial holds
};

struct RackTree {
  RackIndex home{};
  std::optional<RackIndex> reduce_parent;    // none at the home
  std::optional<RackIndex> gather_parent;    // none at the home
  std::vector<ReduceChild> reduce_children;  // in the order in which they are folded
  std::vector<RackIndex> gather_children;    // in the order in which they are sent to
};

struct RackPlan {
  RackIndex self{};
  std::uint32_t rack_count = 0;
  bool aggregates = false;  // has no ranks: its sums are of its children's partials alone
  std::vector<RackTree> trees;
  std::vector<double> shares;   // [tree], sum 1
  std::uint64_t neighbors = 0;  // bit per rack that shares an edge of some tree with this one
};

// `aggregators`: daemons stand for the aggregating switches; they are the racks after all members,
// in the order of the topology's nodes. REQUIRES: plan::Verify said that the forest is right.
// InvalidArgument: the plan sums in switches that no daemon stands for, or there are more than
// kRacksMax.
absl::StatusOr<RackPlan> MakeRackPlan(const plan::Topology& topology, const plan::Forest& forest,
                                      RackIndex self, bool aggregators = false);
// How many aggregating switches it has; and where in it a rack is, or an aggregator.
std::uint32_t AggregatorCount(const plan::Topology& topology);
plan::NodeIndex NodeOf(const plan::Topology& topology, RackIndex rack);

// Which tree each chunk goes by: the one that is furthest behind its share of the bytes so far.
// Every rack asks in the same order (of chunk indices of one core loop) and gets the same answers.
class TreeChooser {
 public:
  // `core`: ties go to another tree first at each core loop.
  TreeChooser(const RackPlan& plan, CoreIndex core);
  std::uint32_t Next(std::uint64_t chunk_bytes);

 private:
  std::vector<double> shares_;
  std::vector<double> given_;  // [tree], bytes
  double total_ = 0;
  std::uint32_t first_ = 0;
};

}  // namespace phub::server::exchange
