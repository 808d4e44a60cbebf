// Groups, topologies and advice from measurements of known networks.
#include "common/plan/measured.h"

#include <gmock/gmock.h>

#include <cmath>
#include <vector>

#include "common/base/random.h"
#include "common/plan/advice.h"
#include "common/plan/generators.h"
#include "common/plan/topology_json.h"
#include "common/plan/verifier.h"
#include "tests/unit/plan/plan_support.h"

namespace phub::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kNear = 50e-6;
constexpr double kFast = 1.25e9;

// Racks in groups, in any order: `group_of`[rack]. `noise`: the maximum relative error of each
// number.
struct World {
  std::vector<std::uint32_t> group_of;
  double far = 500e-6;        // round trip between groups
  double narrow = kFast / 4;  // between two groups, for one pair of racks
  double noise = 0.05;
  std::uint64_t seed = 1;

  Measured Measure() const {
    SeededRandom random(seed);
    const auto noisy = [&](double value, double worse) {
      const double part = static_cast<double>(random.Below(1000)) / 1000;
      return value * (1 + worse * noise * part);
    };
    const std::size_t count = group_of.size();
    Measured measured;
    measured.round_trip_s = measured.bytes_per_s =
        SquareMatrix(count, std::vector<double>(count, 0));
    for (std::size_t a = 0; a < count; ++a) {
      for (std::size_t b = 0; b < count; ++b) {
        if (a == b) continue;
        const bool is_near = group_of[a] == group_of[b];
        measured.round_trip_s[a][b] = noisy(is_near ? kNear : far, 1);
        measured.bytes_per_s[a][b] = noisy(is_near ? kFast : narrow, -1);
      }
    }
    return measured;
  }
};

std::vector<std::string> Names(std::size_t count) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) names.push_back("m" + std::to_string(i));
  return names;
}

SquareMatrix Between(std::size_t groups, double bytes_per_s) {
  return SquareMatrix(groups, std::vector<double>(groups, bytes_per_s));
}

double LinkBytes(const Topology& topology, const char* from, const char* to) {
  const auto link = topology.FindLink(*topology.FindNode(from), *topology.FindNode(to));
  return link ? topology.BytesPerSecond(*link) : -1;
}

TEST(FindGroups, RecoversThoseThatWereHidden) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    World world{.group_of = {0, 1, 0, 1, 1, 0}, .noise = 0.3, .seed = seed};
    EXPECT_THAT(FindGroups(world.Measure()),
                ElementsAre(ElementsAre(0, 2, 5), ElementsAre(1, 3, 4)));
  }
  const World three{.group_of = {2, 1, 0, 0, 1, 2, 3}};
  EXPECT_THAT(FindGroups(three.Measure()),
              ElementsAre(ElementsAre(0, 5), ElementsAre(1, 4), ElementsAre(2, 3), ElementsAre(6)));
}

TEST(FindGroups, OneSignIsEnough) {
  World by_time{.group_of = {0, 1, 1, 0}, .narrow = kFast};
  EXPECT_THAT(FindGroups(by_time.Measure()), ElementsAre(ElementsAre(0, 3), ElementsAre(1, 2)));
  World by_bandwidth{.group_of = {0, 1, 1, 0}, .far = kNear};
  EXPECT_THAT(FindGroups(by_bandwidth.Measure()),
              ElementsAre(ElementsAre(0, 3), ElementsAre(1, 2)));
}

TEST(FindGroups, FindsNoneWhereThereAreNone) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    World flat{.group_of = {0, 0, 0, 0, 0, 0}, .noise = 0.4, .seed = seed};
    EXPECT_EQ(FindGroups(flat.Measure()).size(), 1u) << seed;
  }
  EXPECT_THAT(FindGroups(World{.group_of = {0, 1}}.Measure()), ElementsAre(ElementsAre(0, 1)));
  // A chain: each rack is near only the next one. There are no groups.
  Measured chain = World{.group_of = {0, 0, 0, 0}, .noise = 0}.Measure();
  for (std::size_t a = 0; a < 4; ++a) {
    for (std::size_t b = 0; b < 4; ++b) {
      if (a + 1 < b || b + 1 < a) chain.round_trip_s[a][b] = 10 * kNear;
    }
  }
  EXPECT_EQ(FindGroups(chain).size(), 1u);
}

TEST(FindGroups, AreNotFoundInLuck) {
  // On a busy host: one of 15 round trips was short.
  World world{.group_of = {0, 1, 1, 0, 1, 0}, .far = kNear};
  Measured measured = world.Measure();
  measured.round_trip_s[2][4] = measured.round_trip_s[4][2] = kNear / 3;
  EXPECT_THAT(FindGroups(measured), ElementsAre(ElementsAre(0, 3, 5), ElementsAre(1, 2, 4)));
  world.narrow = kFast;
  measured = world.Measure();
  measured.round_trip_s[2][4] = measured.round_trip_s[4][2] = kNear / 3;
  measured.bytes_per_s[1][3] = measured.bytes_per_s[3][1] = 3 * kFast;
  EXPECT_EQ(FindGroups(measured).size(), 1u);
}

TEST(TopologyOfMeasured, HasAnUplinkForEachGroup) {
  const World world{.group_of = {0, 1, 0, 1, 1, 0}};
  const Measured measured = world.Measure();
  const auto topology =
      TopologyOf(Names(6), measured, FindGroups(measured), Between(2, 0.5 * kFast));
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(topology->members().size(), 6u);
  EXPECT_EQ(topology->node(topology->members()[4]).name, "m4");  // in the order of ranks
  EXPECT_NEAR(LinkBytes(*topology, "m4", "group1"), kFast, 0.05 * kFast);
  EXPECT_EQ(LinkBytes(*topology, "m4", "group0"), -1);
  // Values that differ only by noise count as equal.
  EXPECT_EQ(LinkBytes(*topology, "m0", "group0"), LinkBytes(*topology, "group1", "m3"));
  EXPECT_NEAR(LinkBytes(*topology, "group0", "core"), 0.5 * kFast, 0.05 * kFast);
  // The round trip between groups is the measured one.
  double one_way_s = 0;
  for (const auto& [from, to] : {std::pair("m0", "group0"), std::pair("group0", "core"),
                                 std::pair("core", "group1"), std::pair("group1", "m1")}) {
    const auto link = topology->FindLink(*topology->FindNode(from), *topology->FindNode(to));
    one_way_s += 1e-9 * static_cast<double>(topology->link(*link).latency_ns);
  }
  EXPECT_NEAR(2 * one_way_s, world.far, 0.1 * world.far);
  // The written topology can be read again.
  const auto again = ParseTopologyJson(TopologyToJson(*topology));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->links().size(), topology->links().size());
}

TEST(TopologyOfMeasured, JoinsGroupsByPairsIfTheirWaysDiffer) {
  const Measured measured = World{.group_of = {0, 0, 1, 1, 2, 2}}.Measure();
  SquareMatrix between = Between(3, 0.5 * kFast);
  between[0][2] = between[2][0] = 0.1 * kFast;
  const auto topology = TopologyOf(Names(6), measured, FindGroups(measured), between);
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_FALSE(topology->FindNode("core").has_value());
  EXPECT_NEAR(LinkBytes(*topology, "group0", "group2"), 0.1 * kFast, 0.02 * kFast);
  EXPECT_NEAR(LinkBytes(*topology, "group0", "group1"), 0.5 * kFast, 0.05 * kFast);
}

TEST(TopologyOfMeasured, TellsASlowMember) {
  Measured measured = World{.group_of = {0, 0, 0, 0}, .noise = 0}.Measure();
  for (std::size_t other = 0; other < 3; ++other) {
    measured.bytes_per_s[3][other] = measured.bytes_per_s[other][3] = kFast / 10;
  }
  // One member is slow, so which pairs are near has nothing to do with groups.
  const auto topology = TopologyOf({"core", "switch", "c", "d"}, measured, {{0, 1, 2, 3}}, {{0}});
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_NEAR(LinkBytes(*topology, "d", "switch_"), kFast / 10, 1e6);
  EXPECT_NEAR(LinkBytes(*topology, "switch_", "core"), kFast, 1e6);
}

TEST(TopologyOfMeasured, RefusesWhatIsNoBandwidth) {
  Measured measured = World{.group_of = {0, 0}}.Measure();
  for (const double wrong : {0.0, 0.5, 1e30, std::nan("")}) {
    measured.bytes_per_s[0][1] = measured.bytes_per_s[1][0] = wrong;
    const auto topology = TopologyOf(Names(2), measured, {{0, 1}}, {{0}});
    EXPECT_FALSE(topology.ok()) << wrong;
  }
}

TEST(Transfer, IsTheSamePlanElsewhere) {
  const Topology flat = Named("switch:8");
  const Topology racks = Named("racks:2x4@4");
  for (const char* planner : {"ring", "sharded-star", "halving-doubling"}) {
    const Forest forest = Planned(planner, flat);
    const auto there = Transfer(flat, forest, racks);
    ASSERT_TRUE(there.ok()) << there.status();
    ASSERT_TRUE(Verify(racks, *there).ok());
    EXPECT_EQ(there->trees.size(), forest.trees.size());
    const auto back = Transfer(racks, *there, flat);
    ASSERT_TRUE(back.ok());
    for (std::size_t i = 0; i < forest.trees.size(); ++i) {
      EXPECT_EQ(back->trees[i].home, forest.trees[i].home);
      ASSERT_EQ(back->trees[i].reduce.size(), forest.trees[i].reduce.size());
    }
  }
  EXPECT_FALSE(Transfer(flat, Planned("ring", flat), Named("switch:4")).ok());
  const Topology summing = Named("switch:4,aggregate");
  EXPECT_THAT(
      Transfer(summing, Planned("in-switch", summing), Named("switch:4")).status().ToString(),
      HasSubstr("sums in switches"));
}

TEST(Advise, OrdersAShuffledRingAndProposesAFasterPlan) {
  const World world{.group_of = {0, 1, 0, 1, 1, 0}};
  const Measured measured = world.Measure();
  const RankGroups groups = FindGroups(measured);
  const Topology configured = Named("switch:6");
  const auto advice =
      Advise(configured, measured, groups, Between(2, kFast / 4), {.size_bytes = 64 << 20});
  ASSERT_TRUE(advice.ok()) << advice.status();
  const auto group_of = [&](std::size_t place) { return world.group_of[advice->order[place]]; };
  EXPECT_EQ(group_of(0), 0u);
  for (std::size_t place = 1; place < 6; ++place) EXPECT_EQ(group_of(place), place / 3);
  EXPECT_LT(1.9 * advice->ordered_ring_seconds, advice->ring_seconds);
  EXPECT_GT(advice->gain(), 1.5);
  // The daemons, which know only the configured topology, accept the plan.
  EXPECT_TRUE(Verify(configured, advice->plan).ok());
  EXPECT_EQ(advice->plan.planner, advice->proposed.planner);
}

TEST(Advise, ProposesNothingSlower) {
  const Measured measured = World{.group_of = {0, 0, 0, 0}}.Measure();
  const auto advice = Advise(Named("switch:4"), measured, FindGroups(measured), {{0}}, {});
  ASSERT_TRUE(advice.ok()) << advice.status();
  EXPECT_GE(advice->gain(), 1.0);
  EXPECT_LT(advice->gain(), 1.1);
  EXPECT_EQ(advice->order.front(), 0u);
}

}  // namespace
}  // namespace phub::plan
