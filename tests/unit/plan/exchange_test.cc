// Simulator and rank reordering.
#include <chrono>
#include <numeric>

#include "common/base/random.h"
#include "common/plan/bound.h"
#include "common/plan/reorder.h"
#include "common/plan/simulator.h"
#include "tests/unit/plan/plan_support.h"

namespace phub::plan {
namespace {

constexpr std::int64_t kNanosecond = 1000;  // in picoseconds

TEST(Simulator, AddsBandwidthAndLatency) {
  // 2 members, each the home of half: 1000 bytes at 1 GB/s up, then down, plus the latency twice.
  const Topology topology = Named("ring:2,bandwidth=1GB/s,latency=250ns");
  const Forest forest = Planned("sharded-star", topology);
  for (const SimulationMode mode : {SimulationMode::kFlow, SimulationMode::kLockstep}) {
    const auto result = Simulate(topology, forest, {.size_bytes = 2000, .mode = mode});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->time_ps, 2 * (1000 + 250) * kNanosecond);
    EXPECT_DOUBLE_EQ(result->link_use[0], 2000.0 / 2500.0);
  }
}

TEST(Simulator, AddsWhatMembersDoThemselves) {
  const Topology topology = Named("ring:2,bandwidth=1GB/s,latency=0s");
  const Forest forest = Planned("sharded-star", topology);
  const auto result = Simulate(
      topology, forest, {.size_bytes = 2000, .sum_bytes_per_s = 2e9, .optimizer_bytes_per_s = 5e8});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->time_ps, (1000 + 500 + 2000 + 1000) * kNanosecond);
}

TEST(Simulator, SharesALinkFairly) {
  // Three members send 1000 bytes each to the fourth through one link of 1 GB/s, and back.
  const Topology topology = Named("switch:4,bandwidth=1GB/s,latency=0s");
  Forest forest = Planned("sharded-star", topology);
  forest.trees.resize(1);
  forest.trees[0].share = forest.share_unit;
  ASSERT_TRUE(Verify(topology, forest).ok());
  const auto result = Simulate(topology, forest, {.size_bytes = 1000, .keep_timeline = true});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->time_ps, 6000 * kNanosecond);
  for (const TransferTimes& times : result->timeline)
    EXPECT_EQ(times.sent_ps - times.started_ps, 3000 * kNanosecond);
}

TEST(Simulator, GivesTheRestToWhoIsNotLimitedElsewhere) {
  // m0 and m1 send to m2; m0's link is a quarter, so m1 gets three quarters of m2's.
  TopologyParts parts;
  parts.name = "quarter";
  parts.unit_bytes_per_s = 1'000'000'000;
  parts.unit_capacity = 4;
  parts.nodes = {{"m0"}, {"m1"}, {"m2"}, {"s", NodeKind::kSwitch}};
  for (const std::uint32_t i : {0u, 1u, 2u})
    for (const bool up : {true, false})
      parts.links.push_back({NodeIndex{up ? i : 3}, NodeIndex{up ? 3 : i}, i == 0 ? 1 : 4, 0});
  const auto topology = Topology::Create(parts);
  ASSERT_TRUE(topology.ok());
  Forest forest = Planned("sharded-star", *topology);
  forest.trees = {forest.trees[2]};
  forest.trees[0].share = forest.share_unit;
  const auto result = Simulate(*topology, forest, {.size_bytes = 3000, .keep_timeline = true});
  ASSERT_TRUE(result.ok());
  for (const TransferTimes& times : result->timeline) {
    if (!times.reduces) continue;
    const bool is_slow = forest.trees[0].reduce[times.edge].from == NodeIndex{0};
    EXPECT_EQ(times.sent_ps, (is_slow ? 12000 : 4000) * kNanosecond);
  }
}

TEST(Simulator, LockstepEqualsTheCountedLoads) {
  for (const char* spec : {"torus:4x4,latency=0s", "bigraph:4x8,latency=0s"}) {
    const Topology topology = Named(spec);
    for (const char* planner : {"ring", "halving-doubling", "multitree"}) {
      const Forest forest = Planned(planner, topology);
      const VerifyReport report = Verified(topology, forest);
      const auto result = Simulate(
          topology, forest, {.size_bytes = 12'500'000'000, .mode = SimulationMode::kLockstep});
      ASSERT_TRUE(result.ok());
      EXPECT_NEAR(result->seconds(), report.lockstep_time, 1e-9) << spec << planner;
    }
  }
}

TEST(Simulator, NoPlanBeatsTheBound) {
  for (const char* spec :
       {"torus:4x4,latency=0s", "racks:4x4@4,latency=0s", "mesh:4x4,latency=0s"}) {
    const Topology topology = Named(spec);
    const double bound = SecondsFor(topology, BoundOf(topology)->gather.chunk_times, 1e8);
    for (const Planner& planner : Planners()) {
      if (!planner.applies(topology).ok()) continue;
      const Forest forest = Planned(planner.name, topology);
      for (const std::uint32_t pieces : {1u, 8u}) {
        const auto result =
            Simulate(topology, forest, {.size_bytes = 100'000'000, .pieces = pieces});
        ASSERT_TRUE(result.ok());
        // Reduce and gather may overlap, so one phase's bound is what is safe to claim.
        EXPECT_GE(result->seconds(), bound * 0.999) << planner.name << spec;
      }
    }
  }
}

TEST(Simulator, PiecesHideDepth) {
  const Topology topology = Named("torus:4x4,latency=0s");
  const Forest forest = Planned("packing", topology);
  const double bound = SecondsFor(topology, BoundOf(topology)->both, 1e9);
  const auto one = Simulate(topology, forest, {.size_bytes = 1'000'000'000});
  const auto many = Simulate(topology, forest, {.size_bytes = 1'000'000'000, .pieces = 64});
  ASSERT_TRUE(one.ok() && many.ok());
  EXPECT_LT(many->seconds(), one->seconds());
  EXPECT_LT(many->seconds(), 1.05 * bound);
}

TEST(Simulator, IsDeterministic) {
  const Topology topology = Named("random:16,switches=5,seed=9");
  const Forest forest = Planned("multitree", topology);
  const SimulationOptions options{.size_bytes = 1 << 20, .pieces = 4, .keep_timeline = true};
  EXPECT_EQ(ChromeTrace(topology, forest, *Simulate(topology, forest, options)),
            ChromeTrace(topology, forest, *Simulate(topology, forest, options)));
}

TEST(Simulator, RefusesSizesThatOverflow) {
  const Topology topology = Named("ring:4");
  const Forest forest = Planned("ring", topology);
  EXPECT_FALSE(Simulate(topology, forest, {.size_bytes = 0}).ok());
  EXPECT_FALSE(Simulate(topology, forest, {.size_bytes = kSizeBytesMax + 1}).ok());
  EXPECT_FALSE(Simulate(topology, forest, {.size_bytes = 1, .pieces = 0}).ok());
  EXPECT_FALSE(Simulate(topology, forest, {.size_bytes = 1, .pieces = kPiecesMax + 1}).ok());
  EXPECT_FALSE(Simulate(topology, forest, {.size_bytes = 1, .sum_bytes_per_s = -1}).ok());
  const Topology slow = Named("ring:4,bandwidth=1B/s");
  EXPECT_FALSE(Simulate(slow, Planned("ring", slow), {.size_bytes = kSizeBytesMax}).ok());
}

TEST(Simulator, TakesAtMostASecondFor256Members) {
  const Topology topology = Named("racks:16x16@4");
  for (const char* planner : {"ring", "halving-doubling", "hierarchical"}) {
    const Forest forest = Planned(planner, topology);
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_TRUE(Simulate(topology, forest, {.size_bytes = 1 << 27}).ok());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    // Ten times what it takes: builds with sanitizers and busy machines run this too.
    EXPECT_LT(took.count(), 10.0) << planner;
  }
}

// The time of an all-reduce step by step, in the time of all data on a host's link.
double Lockstep(const Topology& topology, const Forest& forest) {
  return Verified(topology, forest).lockstep_time;
}

std::vector<NodeIndex> Shuffled(const Topology& topology, std::uint64_t seed) {
  SeededRandom random(seed);
  std::vector<NodeIndex> order(topology.members().begin(), topology.members().end());
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
  return order;
}

TEST(Reorder, BringsARandomRingOnOversubscribedRacksToItsBest) {
  const Topology topology = Named("racks:4x8@4,latency=0s");
  const Forest ring = Planned("ring", topology);
  const CostMatrix costs = *CostsOf(topology, 1 << 20);
  double sum = 0;
  constexpr int kOrders = 400;
  for (int seed = 0; seed < kOrders; ++seed) {
    const Forest random =
        *Relabel(topology, ring, Shuffled(topology, static_cast<std::uint64_t>(seed)));
    sum += Lockstep(topology, random);
    if (seed >= 3) continue;
    const auto better = Reorder(topology, random, costs, {.size_bytes = 1 << 26});
    ASSERT_TRUE(better.ok()) << better.status();
    EXPECT_DOUBLE_EQ(Lockstep(topology, better->forest), 1.9375);  // 2*31/32: no uplink is busy
    EXPECT_LT(better->seconds_after, better->seconds_before);
  }
  EXPECT_NEAR(sum / kOrders, 6.9, 0.1);
}

TEST(Reorder, GainsNothingOnAFlatNetwork) {
  const Topology topology = Named("racks:4x8@1,latency=0s");
  const Forest ring = Planned("ring", topology);
  const Forest random = *Relabel(topology, ring, Shuffled(topology, 1));
  EXPECT_DOUBLE_EQ(Lockstep(topology, random), 1.9375);
  const auto better =
      Reorder(topology, random, *CostsOf(topology, 1 << 20), {.size_bytes = 1 << 26});
  ASSERT_TRUE(better.ok());
  EXPECT_DOUBLE_EQ(better->seconds_before, better->seconds_after);
}

TEST(Reorder, ServesHalvingDoublingToo) {
  const Topology topology = Named("racks:4x8@4,latency=0s");
  const Forest plan = Planned("halving-doubling", topology);
  const Forest random = *Relabel(topology, plan, Shuffled(topology, 3));
  const auto better =
      Reorder(topology, random, *CostsOf(topology, 1 << 20), {.size_bytes = 1 << 26});
  ASSERT_TRUE(better.ok());
  EXPECT_LE(Lockstep(topology, better->forest), 2.5);
}

TEST(Reorder, RefusesAMatrixOfAnotherSize) {
  const Topology topology = Named("ring:4");
  EXPECT_FALSE(Reorder(topology, Planned("ring", topology), CostMatrix(3), {.size_bytes = 1}).ok());
}

}  // namespace
}  // namespace phub::plan
