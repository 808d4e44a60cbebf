// The planner greedy: all-gather times on GPU servers, recomputed from the plan
// file, and symmetry.
#include <gmock/gmock.h>

#include <ctime>
#include <string>

#include "common/plan/bound.h"
#include "common/plan/chooser.h"
#include "common/plan/forest_json.h"
#include "common/plan/planners/symmetry.h"
#include "common/plan/topology_json.h"
#include "tests/unit/plan/gpu_servers.h"
#include "tests/unit/plan/plan_file.h"
#include "tests/unit/plan/plan_support.h"

namespace phub::plan {
namespace {

// The microseconds of an all-gather of `bytes` in total, by the plan file.
double Gathered(const Topology& topology, std::int64_t bytes, std::uint32_t starts = 0) {
  const std::clock_t begin = std::clock();
  const Forest forest = Planned("greedy", topology, {.starts = starts, .size_bytes = bytes});
  const double took_s = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  // About 0.1 s. The limit leaves room for sanitizers.
  EXPECT_LT(took_s, 20) << topology.name();
  Verified(topology, forest);
  return 1e6 * AllGatherSeconds(PlanFile(ForestToJson(topology, forest)), TopologyToJson(topology),
                                static_cast<double>(bytes));
}

TEST(Greedy, GathersOnNdv2InTheTimesOfSolvers) {
  const Topology two = Ndv2(2);
  EXPECT_LT(Gathered(two, 1000), 1.02 * 4.12);
  EXPECT_LT(Gathered(two, 64'000), 1.02 * 5.96);
  EXPECT_LT(Gathered(two, 1'000'000), 1.02 * 46.45);
  EXPECT_LT(Gathered(two, 1'000'000'000), 1.02 * 43'753);
  const Topology four = Ndv2(4);
  EXPECT_LT(Gathered(four, 1000), 1.02 * 5.43);
  EXPECT_LT(Gathered(four, 1'000'000), 1.02 * 64.1);
  EXPECT_LT(Gathered(four, 1'000'000'000), 1.02 * 60'121);
}

TEST(Greedy, GathersOnDgx2InTheTimesOfSolvers) {
  const Topology topology = Dgx2();
  EXPECT_LT(Gathered(topology, 1000), 1.02 * 4.005);
  EXPECT_LT(Gathered(topology, 1'000'000), 1.02 * 10.55);
  EXPECT_LT(Gathered(topology, 1'000'000'000), 1.02 * 7750.7);
}

// The time of greedy's plan in the comparison of all planners: reduce and gather, simulated.
double AllReduceMicroseconds(const Topology& topology, std::int64_t bytes) {
  const absl::StatusOr<Choice> choice = Choose(topology, {.simulation = {.size_bytes = bytes},
                                                          .planner = {},
                                                          .pieces_max = 64,
                                                          .flow_work_max = std::uint64_t{1} << 22});
  EXPECT_TRUE(choice.ok()) << choice.status();
  double seconds = 0;
  for (const Candidate& candidate : choice->candidates)
    if (candidate.planner == "greedy") seconds = candidate.seconds;
  EXPECT_LE(choice->candidates[*choice->best].seconds, seconds);
  return seconds * 1e6;
}

// At 1 KB lockstep would add up the latencies of 56 steps.
TEST(Greedy, ReducesAndGathersInTheTimesOfSolvers) {
  EXPECT_LT(AllReduceMicroseconds(Ndv2(4), 1000), 11.2);
  EXPECT_LT(AllReduceMicroseconds(Dgx2(), 1'000'000'000), 1.03 * 15'500);
}

// In a torus every link is used all the time.
TEST(Greedy, ReachesTheBoundOnTori) {
  for (const char* spec : {"torus:4x4", "torus:8x8"}) {
    const Topology topology = Named(spec);
    const Forest forest = Planned("greedy", topology, {.size_bytes = std::int64_t{1} << 30});
    const double members = static_cast<double>(topology.members().size());
    EXPECT_NEAR(
        BusiestTime(PlanFile(ForestToJson(topology, forest)), TopologyToJson(topology)) * members,
        BoundOf(topology)->members_sum().ToDouble(), 1e-9)
        << spec;
  }
}

TEST(Greedy, TimesNeverBeatTheBoundOnGeneralGraphs) {
  for (int seed = 0; seed < 6; ++seed) {
    for (const char* shape : {"random:9,switches=0", "random:12,switches=4"}) {
      const Topology topology = Named(std::string(shape) + ",seed=" + std::to_string(seed));
      const double bound_us =
          1e6 * SecondsFor(topology, GatherBound(topology).chunk_times, 64'000'000);
      EXPECT_GE(Gathered(topology, 64'000'000, 4), bound_us * (1 - 1e-9)) << topology.name();
    }
  }
}

TEST(Greedy, RefusesTooManyMembersWithoutSymmetry) {
  const auto forest = MakePlan(*FindPlanner("greedy"), Named("random:256"), {});
  EXPECT_THAT(Why(forest), ::testing::HasSubstr("paths between 256 members (limit "));
}

// Checks that the elements are symmetries and move all members. Returns their
// number.
std::size_t GroupOf(const Topology& topology) {
  const Symmetry symmetry = FindSymmetry(topology);
  for (const Permutation& element : symmetry.elements) {
    const bool is_identity = element == symmetry.elements.front();
    for (const NodeIndex member : topology.members())
      EXPECT_TRUE(is_identity || element[member.value] != member);
    for (const Link& link : topology.links()) {
      const auto image = topology.FindLink(element[link.from.value], element[link.to.value]);
      EXPECT_TRUE(image.has_value());
      if (!image.has_value()) continue;
      EXPECT_EQ(topology.link(*image).capacity, link.capacity);
      EXPECT_EQ(topology.link(*image).latency_ns, link.latency_ns);
    }
  }
  EXPECT_EQ(symmetry.representatives.size() * symmetry.elements.size(), topology.members().size());
  return symmetry.elements.size();
}

TEST(Symmetry, IsFoundByRotations) {
  EXPECT_EQ(GroupOf(Named("ring:8")), 8u);
  EXPECT_EQ(GroupOf(Named("torus:4x6")), 24u);
  EXPECT_EQ(GroupOf(Named("racks:4x8@4")), 32u);
  EXPECT_EQ(GroupOf(Named("fattree:4x4@2")), 16u);
  EXPECT_EQ(GroupOf(Ndv2(2)), 2u);
  EXPECT_EQ(GroupOf(Ndv2(4)), 4u);
  EXPECT_EQ(GroupOf(Dgx2()), 16u);
  EXPECT_EQ(GroupOf(Named("mesh:3x3")), 1u);
  EXPECT_EQ(GroupOf(Named("random:12,seed=4")), 1u);
}

TEST(Symmetry, DiffersIfOneLinkDiffers) {
  TopologyParts parts = Named("ring:8").parts();
  parts.links[3].latency_ns += 1;
  EXPECT_EQ(GroupOf(*Topology::Create(parts)), 1u);
}

}  // namespace
}  // namespace phub::plan
