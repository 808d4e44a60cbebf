// Plans from the point of view of one rack or one aggregator.
#include "server/core/exchange/rack_plan.h"

#include <gmock/gmock.h>

#include "common/base/check.h"
#include "common/plan/generators.h"
#include "common/plan/planners/planner.h"

namespace phub::server::exchange {
namespace {

using ::testing::HasSubstr;

struct Planned {
  plan::Topology topology;
  plan::Forest forest;
};

Planned Make(const std::string& topology, const char* planner) {
  auto made = plan::Generate(topology);
  PHUB_CHECK(made.ok(), "topology={}", topology);
  auto forest = plan::MakePlan(*plan::FindPlanner(planner), *made, {});
  PHUB_CHECK(forest.ok(), "planner={}", planner);
  return {*std::move(made), *std::move(forest)};
}

TEST(RackPlan, AnAggregatorSumsWhatTheRacksSendAndSendsTheResultToAll) {
  const Planned made = Make("switch:3,aggregate", "in-switch");
  ASSERT_EQ(AggregatorCount(made.topology), 1u);
  const auto rack = MakeRackPlan(made.topology, made.forest, RackIndex{1}, true);
  const auto switched = MakeRackPlan(made.topology, made.forest, RackIndex{3}, true);
  ASSERT_TRUE(rack.ok() && switched.ok()) << rack.status() << switched.status();
  EXPECT_EQ(rack->rack_count, 4u);
  EXPECT_FALSE(rack->aggregates);
  EXPECT_TRUE(switched->aggregates);
  EXPECT_EQ(rack->neighbors, RackBit(RackIndex{3}));
  EXPECT_EQ(switched->neighbors,
            RackBit(RackIndex{0}) | RackBit(RackIndex{1}) | RackBit(RackIndex{2}));
  for (const RackTree& tree : switched->trees) {
    EXPECT_NE(tree.home, RackIndex{3});
    EXPECT_EQ(tree.reduce_children.size(), 2u);
    EXPECT_EQ(tree.reduce_parent, tree.home);
    EXPECT_EQ(tree.gather_parent, tree.home);
    EXPECT_EQ(tree.gather_children.size(), 2u);
  }
}

TEST(RackPlan, SumsInSwitchesForWhichNoDaemonStandsAreRefused) {
  const Planned made = Make("switch:3,aggregate", "in-switch");
  const auto rack = MakeRackPlan(made.topology, made.forest, RackIndex{1});
  EXPECT_THAT(std::string(rack.status().message()), HasSubstr("lists a daemon for each"));
}

// Expect: aggregators are numbered after the racks, in the topology's order.
TEST(RackPlan, EveryRackAndAggregatorHasItsNode) {
  const auto topology = plan::Generate("racks:2x2@2,aggregate");
  ASSERT_TRUE(topology.ok()) << topology.status();
  const std::uint32_t count = AggregatorCount(*topology);
  ASSERT_GE(count, 2u);
  plan::NodeIndex last{};
  for (std::uint32_t rack = 0; rack < 4; ++rack) {
    EXPECT_EQ(NodeOf(*topology, RackIndex{rack}), topology->members()[rack]);
  }
  for (std::uint32_t rack = 4; rack < 4 + count; ++rack) {
    const plan::NodeIndex node = NodeOf(*topology, RackIndex{rack});
    EXPECT_EQ(topology->node(node).kind, plan::NodeKind::kAggregator);
    EXPECT_TRUE(rack == 4 || node.value > last.value);
    last = node;
  }
}

}  // namespace
}  // namespace phub::server::exchange
