// Groups of several racks whose keys have different priority classes, in virtual time, over links
// of a finite rate (rack_group_cluster.h). Times are exact, and equal in every run.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "common/base/random.h"
#include "tests/sim/rack_group_cluster.h"

namespace phub::sim {
namespace {

// How much longer than alone a high group may take. The goal is 1.15.
constexpr double kRatioMax = 1.1;
constexpr double kUnevenRatioMax = 1.15;  // with plans whose racks relay unevenly
constexpr DurationNs kEnd = 60 * kSecond;
constexpr std::uint8_t kData = 0, kPipeline = 1, kTensor = 2;

double Ms(DurationNs time) { return static_cast<double>(time) / 1e6; }

std::vector<std::uint32_t> FirstRacks(std::uint32_t count) {
  std::vector<std::uint32_t> racks(count);
  std::iota(racks.begin(), racks.end(), 0u);
  return racks;
}

struct Case {
  std::uint32_t racks = 2;
  const char* planner = "sharded-star";
  const char* topology = "";
  double ratio_max = kRatioMax;
  std::uint32_t chunks = 32;  // the small group's
  friend void PrintTo(const Case& tried, std::ostream* out) {
    *out << tried.racks << " racks, " << tried.planner << " " << tried.topology;
  }
};

// A group of 4 MiB, which starts rounds again and again, after pauses, and perhaps one of 8 MiB,
// which starts the next round at once.
class RackPriorities : public ::testing::TestWithParam<Case> {
 protected:
  RackGroupOptions Group(std::uint8_t level, std::uint32_t chunks) const {
    return {.racks = FirstRacks(GetParam().racks),
            .level = level,
            .chunks = chunks,
            .planner = GetParam().planner,
            .topology = GetParam().topology};
  }
  // The mean time of a round of the small group, next to a large one of that level.
  DurationNs TimeNextTo(int level) {
    std::vector<RackGroupOptions> groups{Group(kTensor, GetParam().chunks)};
    groups[0].rounds = 4;
    groups[0].pause = 7 * kMillisecond;
    if (level >= 0) groups.push_back(Group(static_cast<std::uint8_t>(level), 64));
    cluster_ = std::make_unique<RackCluster>(RackClusterOptions{.racks = GetParam().racks}, groups);
    EXPECT_TRUE(cluster_->RunUntil(kEnd));
    return cluster_->group(0).MeanTime();
  }
  void Report(const char* what, DurationNs time, DurationNs alone) const {
    fmt::print("{}: {:.2f} ms, {:.3f} times as long as alone; the links need {:.2f} ms\n", what,
               Ms(time), Ms(time) / Ms(alone), Ms(cluster_->LimitOf(cluster_->group(0))));
  }
  std::unique_ptr<RackCluster> cluster_;
};

TEST_P(RackPriorities, AHigherClassHardlyWaitsForALowerOne) {
  const DurationNs alone = TimeNextTo(-1);
  Report("alone", alone, alone);
  const DurationNs next_to_lower = TimeNextTo(kData);
  Report("next to a lower class", next_to_lower, alone);
  EXPECT_LE(Ms(next_to_lower), GetParam().ratio_max * Ms(alone));
  EXPECT_GT(cluster_->Count(server::CoreCounter::peer_overtakes), 0u);
}

INSTANTIATE_TEST_SUITE_P(Racks, RackPriorities,
                         ::testing::Values(Case{2}, Case{4}, Case{8}, Case{8, "ring"},
                                           Case{4, "halving-doubling"}));
// Most messages of these plans wait for others, from several racks.
INSTANTIATE_TEST_SUITE_P(Uneven, RackPriorities,
                         ::testing::Values(Case{3, "double-binary-tree", "", kUnevenRatioMax},
                                           Case{5, "double-binary-tree", "", kUnevenRatioMax},
                                           Case{8, "double-binary-tree", "", kUnevenRatioMax},
                                           Case{8, "double-binary-tree", "", kUnevenRatioMax, 8},
                                           Case{8, "greedy", "", kUnevenRatioMax},
                                           Case{8, "packing", "", kUnevenRatioMax},
                                           Case{6, "hierarchical", "racks:3x2@2", kUnevenRatioMax},
                                           Case{8, "multitree", "racks:2x4@4", kUnevenRatioMax}));

// Otherwise the tests above would show nothing.
using SameClass = RackPriorities;
TEST_P(SameClass, GroupsOfOneClassWaitForEachOther) {
  const DurationNs alone = TimeNextTo(-1);
  const DurationNs next_to_equal = TimeNextTo(kTensor);
  Report("next to the same class", next_to_equal, alone);
  EXPECT_GE(Ms(next_to_equal), 2 * Ms(alone));
  EXPECT_EQ(cluster_->Count(server::CoreCounter::peer_overtakes), 0u);
}
INSTANTIATE_TEST_SUITE_P(Racks, SameClass, ::testing::Values(Case{4}));

// Groups of the highest class leave no gaps. Each lower class has one of 20 bytes.
class RackShares : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kRacks = 4;
  static RackGroupOptions Always(std::uint8_t level) {
    return {.racks = FirstRacks(kRacks), .level = level, .chunks = 16};
  }
  // How much of the bytes of all groups were those of group `index`, per cent.
  static double PercentOf(RackCluster& cluster, std::size_t index, std::size_t groups) {
    std::vector<double> bytes;
    for (std::size_t i = 0; i < groups; ++i)
      bytes.push_back(static_cast<double>(cluster.group(i).times().size()) *
                      static_cast<double>(cluster.group(i).bytes()));
    return 100 * bytes[index] / std::accumulate(bytes.begin(), bytes.end(), 0.0);
  }
};

TEST_F(RackShares, TheLowestClassEndsNextToAHigherOneThatNeverPauses) {
  RackGroupOptions low = Always(kData);
  low.rounds = 2;
  RackCluster cluster({.racks = kRacks}, {low, Always(kTensor), Always(kTensor), Always(kTensor)});
  EXPECT_TRUE(cluster.RunUntil(kEnd));
  const double percent = PercentOf(cluster, 0, 4);
  fmt::print("the lowest class had {:.2f} % of the bytes\n", percent);
  EXPECT_GE(percent, 4.0);
  EXPECT_LE(percent, 6.5);
}

TEST_F(RackShares, ClassesBetweenTheHighestAndTheLowestHaveTheirShareToo) {
  RackGroupOptions low = Always(kData), middle = Always(kPipeline);
  low.rounds = middle.rounds = 2;
  RackCluster cluster({.racks = kRacks},
                      {low, middle, Always(kTensor), Always(kTensor), Always(kTensor)});
  EXPECT_TRUE(cluster.RunUntil(kEnd));
  for (const std::size_t group : {std::size_t{0}, std::size_t{1}})
    EXPECT_GE(PercentOf(cluster, group, 5), 3.5) << group;
}

// How long a round of the lowest class takes next to a group of the highest.
class RackLowest : public RackShares {
 protected:
  static DurationNs TimeOf(const std::vector<RackGroupOptions>& others) {
    std::vector<RackGroupOptions> groups{Always(kData)};
    groups[0].chunks = 64;
    groups[0].rounds = 8;
    groups.insert(groups.end(), others.begin(), others.end());
    RackCluster cluster({.racks = kRacks}, groups);
    EXPECT_TRUE(cluster.RunUntil(kEnd));
    return cluster.group(0).MeanTime();
  }
};

TEST_F(RackLowest, ItHasTheWholeLinkNextToAHigherClassThatIsIdle) {
  RackGroupOptions high = Always(kTensor);
  high.rounds = 1;
  const double alone = Ms(TimeOf({})), next_to_idle = Ms(TimeOf({high}));
  fmt::print("alone {:.2f} ms, next to one round of a higher class {:.2f} ms\n", alone,
             next_to_idle);
  EXPECT_LE(next_to_idle, 1.05 * alone);
}

// The rounds are in progress in the other racks all that time.
TEST_F(RackLowest, ItHasNearlyTheWholeLinkWhileRoundsOfAHigherClassWaitForARank) {
  RackGroupOptions high = Always(kTensor);
  high.chunks = 4;
  high.late = 100 * kMillisecond;
  const double alone = Ms(TimeOf({})), next_to_waiting = Ms(TimeOf({high}));
  fmt::print("alone {:.2f} ms, next to a higher class that waits {:.2f} ms\n", alone,
             next_to_waiting);
  EXPECT_LE(next_to_waiting, 1.25 * alone);
}

// Random groups over two to eight racks, whose lanes stall at random. Every round has the sums that
// it must have, and all rounds end.
class RackGroupSeeds : public ::testing::Test {
 protected:
  static std::vector<std::uint32_t> DrawRacks(SeededRandom& random, std::uint32_t racks) {
    std::vector<std::uint32_t> drawn;
    while (drawn.size() < 2) {
      drawn.clear();
      for (std::uint32_t rack = 0; rack < racks; ++rack)
        if (random.Chance(1, 2)) drawn.push_back(rack);
    }
    return drawn;
  }
  static RackGroupOptions DrawGroup(SeededRandom& random, std::uint32_t racks) {
    constexpr const char* kPlanners[] = {"sharded-star", "ring", "double-binary-tree"};
    return {.racks = DrawRacks(random, racks),
            .level = static_cast<std::uint8_t>(random.Below(kPriorityLevels)),
            .chunks = static_cast<std::uint32_t>(1 + random.Below(24)),
            .rounds = static_cast<std::uint32_t>(1 + random.Below(5)),
            .pause = random.Chance(1, 2) ? static_cast<DurationNs>(random.Below(kMillisecond)) : 0,
            .planner = kPlanners[random.Below(std::size(kPlanners))]};
  }
  // The overtaking messages of the seed.
  static std::uint64_t Run(std::uint64_t seed) {
    SeededRandom random(seed);
    RackClusterOptions options;
    options.racks = static_cast<std::uint32_t>(2 + random.Below(7));
    options.chunk_bytes = 1024u << random.Below(8);
    options.links.socket_bytes = 64u * 1024 << random.Below(6);
    options.links.send_queue = 1u << random.Below(9);
    std::vector<RackGroupOptions> groups;
    for (std::uint64_t count = 2 + random.Below(5); count > 0; --count)
      groups.push_back(DrawGroup(random, options.racks));
    RackCluster cluster(options, groups);
    for (int stalls = 0; stalls < 20; ++stalls) {
      const auto from = static_cast<std::uint32_t>(random.Below(options.racks));
      const auto to = static_cast<std::uint32_t>(random.Below(options.racks));
      const auto begin = static_cast<TimeNs>(random.Below(50 * kMillisecond));
      const auto end = begin + static_cast<TimeNs>(random.Below(20 * kMillisecond));
      cluster.links().Schedule(begin,
                               [&cluster, from, to, end] { cluster.links().Stall(from, to, end); });
    }
    EXPECT_TRUE(cluster.RunUntil(kEnd)) << "seed " << seed;
    return cluster.Count(server::CoreCounter::peer_overtakes);
  }
};

TEST_F(RackGroupSeeds, EverySeedEndsWithTheRightSums) {
  const std::uint64_t seeds = std::getenv("PHUB_TEST_LONG") != nullptr ? 2000 : 40;
  std::uint64_t overtakes = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) overtakes += Run(seed);
  fmt::print("{} messages overtook others\n", overtakes);
  EXPECT_GT(overtakes, 1000u);
}

}  // namespace
}  // namespace phub::sim
