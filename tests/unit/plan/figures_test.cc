// Figures from the papers that the planners are based on.
#include <oneapi/tbb/global_control.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/plan/bound.h"
#include "common/plan/forest_json.h"
#include "tests/unit/plan/plan_support.h"

namespace phub::plan {
namespace {

// Returns the number of steps, after a check that no link carries more than one chunk (1/N of the
// data) in any step.
std::uint32_t GatherStepsOfOneChunkEach(std::string_view planner, const Topology& topology) {
  const VerifyReport report = Verified(topology, Planned(planner, topology));
  const auto chunk = Fraction(1, static_cast<std::int64_t>(topology.members().size()));
  for (const Rational& time : report.step_times) EXPECT_LE(time, chunk);
  EXPECT_EQ(report.reduce_steps, report.gather_steps);
  return report.gather_steps;
}

TEST(Figures, MultiTreeOnTori) {
  const Topology small = Named("torus:4x4");
  EXPECT_EQ(GatherBound(small).chunk_times.Ceiling(), 4);
  EXPECT_EQ(GatherStepsOfOneChunkEach("multitree", small), 5u);
  const Topology large = Named("torus:8x8");
  EXPECT_EQ(GatherBound(large).chunk_times.Ceiling(), 16);
  const std::uint32_t steps = GatherStepsOfOneChunkEach("multitree", large);
  EXPECT_GE(steps, 16u);
  EXPECT_LE(steps, 18u);
}

TEST(Figures, MultiTreeOnTheMeshNeedsManyStarts) {
  const Topology mesh = Named("mesh:4x4");
  EXPECT_EQ(GatherBound(mesh).chunk_times.Ceiling(), 8);
  EXPECT_EQ(GatherStepsOfOneChunkEach("multitree", mesh), 8u);
}

TEST(Figures, RingOnToriTakesOneStepPerOtherMember) {
  EXPECT_EQ(GatherStepsOfOneChunkEach("ring", Named("torus:4x4")), 15u);
  EXPECT_EQ(GatherStepsOfOneChunkEach("ring", Named("torus:8x8")), 63u);
  EXPECT_EQ(GatherStepsOfOneChunkEach("ring", Named("mesh:4x4")), 15u);
}

TEST(Figures, MultiTreeThroughSwitches) {
  EXPECT_EQ(GatherStepsOfOneChunkEach("multitree", Named("bigraph:4x8")), 31u);
  EXPECT_EQ(GatherStepsOfOneChunkEach("multitree", Named("fattree:4x4")), 15u);
}

// The bound is 63. Trees that enter a rack twice waste its uplink: before, 105 steps.
TEST(Figures, MultiTreeEntersEveryRackOnce) {
  const Topology topology = Named("racks:8x8@8");
  EXPECT_EQ(GatherBound(topology).chunk_times.Ceiling(), 63);
  const Forest forest = Planned("multitree", topology, {.starts = 2});
  EXPECT_LE(Verified(topology, forest).gather_steps, 66u);
  for (const Tree& tree : forest.trees)
    EXPECT_EQ(
        std::count_if(tree.gather.begin(), tree.gather.end(),
                      [&](const Edge& edge) { return forest.paths[edge.path.value].size() > 2; }),
        7);
  EXPECT_LE(GatherStepsOfOneChunkEach("multitree", Named("racks:4x8@4")), 32u);
}

TEST(Figures, PackingAttainsTheBoundExactly) {
  for (const char* spec : {"torus:4x4", "torus:8x8", "mesh:4x4", "switch:8", "racks:4x4@8",
                           "fattree:4x4@2", "bigraph:4x8", "random:12,seed=4"}) {
    const Topology topology = Named(spec);
    const ExchangeBound bound = BoundOf(topology).value();
    const VerifyReport report = Verified(topology, Planned("packing", topology));
    const Rational members(static_cast<std::int64_t>(topology.members().size()));
    EXPECT_EQ(Multiply(report.gather_time, members), bound.gather.chunk_times) << spec;
    EXPECT_EQ(Multiply(report.reduce_time, members), bound.reduce.chunk_times) << spec;
  }
}

// Chains before: 15, 63 and 57 steps.
TEST(Figures, PackingIsShallowBehindSwitches) {
  for (const auto& [spec, steps] :
       {std::pair{"switch:16", 3u}, std::pair{"racks:8x8@8", 8u}, std::pair{"bigraph:8x8", 24u}}) {
    const Topology topology = Named(spec);
    EXPECT_LE(Verified(topology, Planned("packing", topology)).gather_steps, steps) << spec;
  }
}

TEST(Figures, SwitchesThatAggregateCarryAllOfTheDataOnce) {
  const Topology topology = Named("switch:16,aggregate");
  const VerifyReport report = Verified(topology, Planned("in-switch", topology));
  EXPECT_EQ(report.total_time, Rational(1));  // endpoints alone: 30/16
}

TEST(Figures, SearchesDoNotDependOnTheNumberOfThreads) {
  const Topology topology = Named("mesh:4x4");
  for (const char* planner : {"multitree", "greedy"}) {
    std::string first;
    for (const int threads : {1, 2, 5}) {
      const oneapi::tbb::global_control limit(oneapi::tbb::global_control::max_allowed_parallelism,
                                              static_cast<std::size_t>(threads));
      const std::string plan = ForestToJson(topology, Planned(planner, topology, {.starts = 32}));
      if (first.empty()) first = plan;
      EXPECT_EQ(plan, first) << planner;
    }
  }
}

// Exchanges on the busiest link between switches, for each step of the first half: in step s of
// halving-doubling one exchange is 1/2^(s+1) of the data.
std::vector<Rational> SwitchLoads(const Topology& topology, const Forest& forest) {
  const VerifyReport report = Verified(topology, forest);
  std::vector<Rational> loads;
  for (std::uint32_t step = 0; step < report.steps / 2; ++step) {
    std::int64_t most = 0;
    for (const LinkLoad& load : report.step_loads[step]) {
      const Link& link = topology.link(load.link);
      if (!topology.IsMember(link.from) && !topology.IsMember(link.to))
        most = std::max(most, load.share);
    }
    loads.push_back(Fraction(most << (step + 1), forest.share_unit));
  }
  return loads;
}

std::vector<Rational> Whole(const std::vector<std::int64_t>& numbers) {
  std::vector<Rational> result;
  for (const std::int64_t number : numbers) result.emplace_back(number);
  return result;
}

TEST(Figures, HdrmLoadsEveryLinkBetweenSwitchesOnceInEveryStep) {
  const Topology topology = Named("bigraph:4x8");
  EXPECT_EQ(SwitchLoads(topology, Planned("hdrm", topology)), Whole({1, 1, 1, 1, 1}));
  EXPECT_EQ(SwitchLoads(topology, Planned("halving-doubling", topology)), Whole({0, 0, 2, 2, 4}));
}

TEST(Figures, HdrmWithTwiceAsManyMembersLoadsTwiceAndLosesToTheIdentity) {
  const Topology topology = Named("bigraph:8x8");
  EXPECT_EQ(SwitchLoads(topology, Planned("hdrm", topology)), Whole({2, 2, 2, 2, 2, 2}));
  const VerifyReport hdrm = Verified(topology, Planned("hdrm", topology));
  const VerifyReport identity = Verified(topology, Planned("halving-doubling", topology));
  EXPECT_DOUBLE_EQ(hdrm.lockstep_time / 2, 1.96875);
  EXPECT_DOUBLE_EQ(identity.lockstep_time / 2, 1.375);
}

TEST(Figures, HdrmStaysBalancedOnEveryBiGraphOfPowersOfTwo) {
  for (const int members : {1, 2, 4, 8}) {
    for (const int switches : {2, 4, 8, 16}) {
      const Topology topology =
          Named("bigraph:" + std::to_string(members) + "x" + std::to_string(switches));
      const std::int64_t load = std::max(1, members / (switches / 2));
      for (const Rational& step : SwitchLoads(topology, Planned("hdrm", topology)))
        EXPECT_EQ(step, Rational(load)) << topology.name();
    }
  }
}

}  // namespace
}  // namespace phub::plan
