// The simulator, compared with times calculated by hand and with a slow simulator.
#include "common/plan/simulator.h"

#include <ctime>
#include <utility>

#include "common/plan/bound.h"
#include "tests/unit/plan/plan_support.h"
#include "tests/unit/plan/slow_simulator.h"

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
  // m0 and m1 send to m2; m0's link has a quarter of the bandwidth, so m1 gets three quarters of
  // m2's.
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

// Forests with very different paths and shares, on links of different bandwidths.
TEST(Simulator, AgreesWithASlowOne) {
  int compared = 0;
  for (const char* spec :
       {"torus:3x3", "racks:3x2@4", "fattree:2x3@2", "random:7,switches=0,seed=3",
        "random:8,switches=4,seed=5", "random:8,switches=3,seed=6,aggregate"}) {
    const Topology topology = Named(spec);
    for (const Planner& planner : Planners()) {
      if (!planner.applies(topology).ok()) continue;
      const Forest forest = Planned(planner.name, topology, {.starts = 2});
      for (const std::uint32_t pieces : {1u, 3u}) {
        if (EdgeCount(forest) * pieces > 600) continue;  // too large for the slow simulator
        const SimulationOptions options{.size_bytes = 1'000'003, .pieces = pieces};
        const auto result = Simulate(topology, forest, options);
        ASSERT_TRUE(result.ok()) << result.status();
        const double slow = SlowSimulator(topology, forest, options).Run();
        EXPECT_NEAR(result->seconds(), slow, 2e-6 * slow) << spec << " " << planner.name << pieces;
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 40);
}

TEST(Simulator, EndsAtItsLimitOfWork) {
  const Topology topology = Named("racks:4x4@2");
  const Forest forest = Planned("multitree", topology);
  SimulationOptions options{.size_bytes = 1 << 20, .pieces = 4};
  const auto whole = Simulate(topology, forest, options);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_GT(whole->work, 2 * EdgeCount(forest) * options.pieces);  // sent and arrived
  options.work_max = whole->work;
  EXPECT_EQ(Simulate(topology, forest, options)->time_ps, whole->time_ps);
  options.work_max = whole->work / 2;
  EXPECT_EQ(Simulate(topology, forest, options).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(Simulator, PricesSeveralNumbersOfPiecesInOnePass) {
  const Topology topology = Named("racks:4x4@2");
  const std::vector<std::uint32_t> pieces{1, 3, 16, 200};
  for (const char* planner : {"ring", "multitree"}) {
    SimulationOptions options{.size_bytes = 10'000'019, .mode = SimulationMode::kLockstep};
    options.sum_bytes_per_s = 5e9;
    const Forest forest = Planned(planner, topology);
    const auto seconds = LockstepSeconds(topology, forest, options, pieces);
    ASSERT_TRUE(seconds.ok()) << seconds.status();
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      options.pieces = pieces[i];
      EXPECT_DOUBLE_EQ((*seconds)[i], Simulate(topology, forest, options)->seconds());
    }
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

// With more than 4096 flows ends are rounded coarsely, which would give 1.0045.
TEST(Simulator, NoLinkCarriesMoreThanItCan) {
  const Topology topology = Named("racks:4x32@2,latency=0s");
  const Forest forest = Planned("sharded-star", topology);
  const auto result = Simulate(topology, forest, {.size_bytes = 100'000'000});
  ASSERT_TRUE(result.ok()) << result.status();
  for (const double use : result->link_use) EXPECT_LE(use, 1 + 1e-9);
}

TEST(Simulator, PiecesHideDepth) {
  const Topology topology = Named("torus:4x4,latency=0s");
  const Forest forest = Planned("packing", topology);
  const double bound = SecondsFor(topology, BoundOf(topology)->one_after_the_other, 1e9);
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

TEST(Simulator, TakesSecondsAtMostFor256Members) {
  // Regular, irregular, and every pair of members at once.
  for (const auto& [spec, planner] : {std::pair{"racks:16x16@4", "ring"},
                                      {"racks:16x16@4", "hierarchical"},
                                      {"torus:16x16", "halving-doubling"},
                                      {"random:256", "halving-doubling"},
                                      {"random:256", "sharded-star"}}) {
    const Topology topology = Named(spec);
    const Forest forest = Planned(planner, topology);
    const std::clock_t begin = std::clock();  // CPU time of this process only
    ASSERT_TRUE(Simulate(topology, forest, {.size_bytes = 1 << 27}).ok());
    const double took_s = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    // Sixty times the usual time, since builds with sanitizers run this too. An earlier version
    // took 400 s.
    EXPECT_LT(took_s, 60.0) << planner << " on " << spec;
  }
}

}  // namespace
}  // namespace phub::plan
