// The memory of daemons along a plan, against figures computed by hand.
#include "common/plan/memory.h"

#include <gtest/gtest.h>

#include "tests/unit/plan/plan_support.h"

namespace phub::plan {
namespace {

// f32 throughout.
MemoryOptions Options(double gradient_bytes, std::uint32_t ranks) {
  return {.elements = gradient_bytes / 4, .ranks = ranks};
}

std::vector<DaemonMemory> MemoryFor(std::string_view planner, std::string_view spec,
                                    const MemoryOptions& options) {
  const Topology topology = Named(spec);
  const Forest forest = Planned(planner, topology);
  Verified(topology, forest);
  return MemoryOf(topology, forest, options);
}

void ExpectTraffic(const MemoryTraffic& traffic, double read, double written) {
  EXPECT_DOUBLE_EQ(traffic.read, read);
  EXPECT_DOUBLE_EQ(traffic.written, written);
}

// Each rack is the home of a quarter, with three children in both directions, and a leaf of three
// quarters. Two ranks, 400 bytes, without optimizer.
TEST(Memory, StarAsComputedByHand) {
  const auto racks = MemoryFor("sharded-star", "switch:4", Options(400, 2));
  ASSERT_EQ(racks.size(), 4u);
  for (const DaemonMemory& rack : racks) {
    EXPECT_DOUBLE_EQ(rack.sent, 300 + 300);      // sums to three homes, results to three leaves
    EXPECT_DOUBLE_EQ(rack.received, 300 + 300);  // likewise
    ExpectTraffic(rack.landing, 0, 800 + 600);
    // Own ranks: 800 read, 400 written. At the home: 100 and three partial sums, 100 written.
    ExpectTraffic(rack.sums, 800 + 400, 400 + 100);
    ExpectTraffic(rack.update, 100, 100);
    ExpectTraffic(rack.sending, 600 + 800, 0);
    // Sums 400, landed partial sums 300, parameters 300 + 100.
    EXPECT_DOUBLE_EQ(rack.touched, 1100);
    EXPECT_DOUBLE_EQ(rack.all().all(), 1400 + 1700 + 200 + 1400);
  }
  EXPECT_DOUBLE_EQ(SumOf(racks).uplink(), 4 * 1200);
}

// In each tree of a ring: one leaf, two racks with a child, and the home with a child.
TEST(Memory, RingAsComputedByHand) {
  const auto racks = MemoryFor("ring", "switch:4", Options(400, 1));
  ASSERT_EQ(racks.size(), 4u);
  for (const DaemonMemory& rack : racks) {
    EXPECT_DOUBLE_EQ(rack.sent, 600);
    EXPECT_DOUBLE_EQ(rack.received, 600);
    ExpectTraffic(rack.landing, 0, 400 + 600);
    ExpectTraffic(rack.sums, 400 + 600, 400 + 300);  // three sums of two
    ExpectTraffic(rack.update, 100, 100);
    ExpectTraffic(rack.sending, 600 + 400, 0);
    EXPECT_DOUBLE_EQ(rack.touched, 400 + 300 + 300 + 100);
  }
}

// Each rack is in four trees: home with 2 children, child of a home with 1 child, two leaves.
TEST(Memory, HalvingDoublingAsComputedByHand) {
  const auto racks = MemoryFor("halving-doubling", "switch:4", Options(400, 1));
  ASSERT_EQ(racks.size(), 4u);
  for (const DaemonMemory& rack : racks) {
    EXPECT_DOUBLE_EQ(rack.sent, 600);
    EXPECT_DOUBLE_EQ(rack.received, 600);
    ExpectTraffic(rack.landing, 0, 400 + 600);
    // Own: 400, 400. Home: 3 read, 1 written. Its child with a child: 2 read, 1 written.
    ExpectTraffic(rack.sums, 400 + 300 + 200, 400 + 100 + 100);
    ExpectTraffic(rack.update, 100, 100);
    ExpectTraffic(rack.sending, 600 + 400, 0);
    EXPECT_DOUBLE_EQ(rack.touched, 1100);
  }
}

// Two racks of two: a pair sums, then the pairs of two racks. The homes are two steps away.
TEST(Memory, HierarchicalMovesAsMuchAsItsEdges) {
  const auto members = MemoryFor("hierarchical", "racks:2x2", Options(400, 1));
  ASSERT_EQ(members.size(), 4u);
  const DaemonMemory all = SumOf(members);
  // Four members: each tree has three edges up and three down.
  EXPECT_DOUBLE_EQ(all.sent, 3 * 400 * 2);
  EXPECT_DOUBLE_EQ(all.received, all.sent);
  ExpectTraffic(all.landing, 0, 4 * 400 + all.received);
  ExpectTraffic(all.update, 400, 400);
  ExpectTraffic(all.sending, all.sent + 4 * 400, 0);
  // In each tree two members have children: the home two, its counterpart in the other rack one.
  ExpectTraffic(all.sums, 4 * 400 + 400 * (3 + 2), 4 * 400 + 400 * 2);
}

// Double binary trees: not balanced, so compare the sums over all racks.
TEST(Memory, BinaryTreesAsComputedFromTheirChildren) {
  const Topology topology = Named("switch:5");
  const Forest forest = Planned("double-binary-tree", topology);
  const DaemonMemory all = SumOf(MemoryOf(topology, forest, Options(400, 3)));
  double inner = 0;  // times bytes: vertices with children
  for (const Tree& tree : forest.trees) {
    std::vector<bool> has_children(topology.nodes().size());
    for (const Edge& edge : tree.reduce) has_children[edge.to.value] = true;
    for (const bool is_inner : has_children) {
      if (is_inner) inner += 400.0 * static_cast<double>(tree.share) / double(forest.share_unit);
    }
  }
  EXPECT_DOUBLE_EQ(all.sent, 2 * 4 * 400);
  ExpectTraffic(all.landing, 0, 5 * 3 * 400 + 2 * 4 * 400);
  // Own sums: 15 gradients, 5 sums. Then each inner vertex reads its own sum and all children's.
  ExpectTraffic(all.sums, 15 * 400 + inner + 4 * 400, 5 * 400 + inner);
  ExpectTraffic(all.sending, 2 * 4 * 400 + 15 * 400, 0);
}

TEST(Memory, AnAggregatorHasNoRanksAndNoOwnSum) {
  const Topology topology = Named("switch:3,aggregate");
  const auto daemons = MemoryOf(topology, Planned("in-switch", topology), Options(300, 2));
  ASSERT_EQ(daemons.size(), 4u);
  const DaemonMemory& aggregator = daemons.back();
  EXPECT_FALSE(topology.IsMember(aggregator.node));
  // In each of three trees, two racks send sums to it, it sends one to the home, and results back.
  EXPECT_DOUBLE_EQ(aggregator.received, 600 + 300);
  EXPECT_DOUBLE_EQ(aggregator.sent, 300 + 600);
  ExpectTraffic(aggregator.landing, 0, 900);
  ExpectTraffic(aggregator.sums, 600, 300);
  ExpectTraffic(aggregator.update, 0, 0);
  ExpectTraffic(aggregator.sending, 900, 0);
  EXPECT_DOUBLE_EQ(aggregator.touched, 300 + 600 + 300);
}

// Adam with bf16 on the wire and f32 masters: 2 bytes for gradients and parameters, 4 for the rest.
TEST(Memory, OptimizersReadAndWriteTheirStateAtTheHome) {
  MemoryOptions options = {.elements = 100, .ranks = 2, .updates = true, .states = 2};
  options.gradient_bytes = options.parameter_bytes = 2;
  options.keeps_masters = true;
  const auto racks = MemoryFor("ring", "switch:2", options);
  ASSERT_EQ(racks.size(), 2u);
  for (const DaemonMemory& rack : racks) {
    EXPECT_DOUBLE_EQ(rack.sent, 50 * 4 + 50 * 2);
    ExpectTraffic(rack.landing, 0, 400 + 200 + 100);
    ExpectTraffic(rack.sums, 400 + 400, 400 + 200);
    ExpectTraffic(rack.update, 200 + 200 + 400, 200 + 100 + 400);
    ExpectTraffic(rack.sending, 300 + 400, 0);
    EXPECT_DOUBLE_EQ(rack.touched, 400 + 200 + 100 + (200 + 100 + 400));
  }
}

}  // namespace
}  // namespace phub::plan
