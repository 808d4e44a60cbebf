// Plans around other plans: the busiest link of groups that exchange at the same time, for plans
// that were made separately, one after the other, and jointly.
#include "common/plan/around.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "common/plan/forest_json.h"
#include "common/plan/generators.h"
#include "common/plan/groups/together.h"
#include "common/plan/planners/planner.h"
#include "common/plan/subset.h"
#include "common/plan/verifier.h"

namespace phub::plan {
namespace {

constexpr std::int64_t kAroundBytes = std::int64_t{64} << 20;

MakesForest By(const std::string& planner) {
  return [planner](const Topology& part) -> absl::StatusOr<Forest> {
    return MakePlan(*FindPlanner(planner), part, {.starts = 2, .size_bytes = kAroundBytes});
  };
}

std::vector<NodeIndex> All(const Topology& topology) {
  return {topology.members().begin(), topology.members().end()};
}

std::vector<GroupPlan> Around(const Topology& topology, const std::string& planner,
                              const std::vector<std::vector<NodeIndex>>& groups,
                              const LinkTimes& others = {}) {
  const std::vector<MakesForest> makers = {By(planner)};
  auto plans = PlanAround(topology, groups, others, {.makers = makers, .size_bytes = kAroundBytes});
  EXPECT_TRUE(plans.ok()) << plans.status();
  return plans.ok() ? *std::move(plans) : std::vector<GroupPlan>();
}

LinkTimes SumOf(const std::vector<GroupPlan>& plans) {
  LinkTimes times;
  for (const GroupPlan& plan : plans) AddTo(times, plan.times);
  return times;
}

double SecondsTogether(const Topology& topology, const std::vector<GroupPlan>& plans) {
  std::vector<SizedPlan> sized;
  for (const GroupPlan& plan : plans) sized.push_back({&plan.forest, kAroundBytes});
  const auto seconds = SimulateTogether(topology, sized, 16);
  EXPECT_TRUE(seconds.ok()) << seconds.status();
  return seconds.ok() ? *std::ranges::max_element(*seconds) : 0;
}

TEST(Around, AGroupAloneHasThePlannersPlan) {
  const auto topology = Generate("switch:5");
  const std::vector<NodeIndex> members = {topology->members()[0], topology->members()[2],
                                          topology->members()[3]};
  for (const char* const planner : {"ring", "double-binary-tree", "sharded-star"}) {
    const auto alone = PlanForMembers(*topology, members, By(planner));
    const auto plans = Around(*topology, planner, {members});
    ASSERT_TRUE(alone.ok() && plans.size() == 1);
    EXPECT_EQ(ForestToJson(*topology, *alone), ForestToJson(*topology, plans[0].forest));
  }
}

// The inner members of both trees send and receive more than the others.
TEST(Around, TwoGroupsThatAreMadeTogetherBalanceWhatSeparatePlansPileUp) {
  const auto topology = Generate("switch:4");
  const std::vector<NodeIndex> all = All(*topology);
  std::vector<GroupPlan> separate = Around(*topology, "double-binary-tree", {all});
  separate.push_back(separate[0]);
  const std::vector<GroupPlan> joint = Around(*topology, "double-binary-tree", {all, all});
  ASSERT_EQ(joint.size(), 2u);
  EXPECT_LT(Busiest(SumOf(joint)), Busiest(SumOf(separate)));
  EXPECT_LT(SecondsTogether(*topology, joint), SecondsTogether(*topology, separate));
}

TEST(Around, ALaterGroupAvoidsWhatIsLoaded) {
  const auto topology = Generate("switch:4");
  const std::vector<NodeIndex> all = All(*topology);
  const std::vector<GroupPlan> first = Around(*topology, "double-binary-tree", {all});
  const std::vector<GroupPlan> next =
      Around(*topology, "double-binary-tree", {all}, first[0].times);
  EXPECT_NE(next[0].times, first[0].times);
  LinkTimes both = first[0].times;
  AddTo(both, next[0].times);
  EXPECT_LT(Busiest(both), 2 * Busiest(first[0].times));
}

TEST(Around, PlansForMembersInAnyOrderAreThoseOfTheseMembers) {
  for (const char* const name : {"switch:5", "ring:5", "racks:2x3@2", "torus:2x2"}) {
    const auto topology = Generate(name);
    ASSERT_TRUE(topology.ok());
    std::vector<NodeIndex> members = All(*topology);
    members.erase(members.begin() + 1);
    for (const Planner& planner : Planners()) {
      const auto part = WithMembers(*topology, members);
      if (!planner.applies(*part).ok()) continue;
      for (std::uint32_t first = 1; first < members.size(); ++first) {
        const auto forest =
            PlanForMembers(*topology, members, By(std::string(planner.name)), first);
        if (!forest.ok()) continue;  // the planner needs the members in their order
        EXPECT_TRUE(Verify(*topology, *forest).ok()) << name << " " << planner.name;
        EXPECT_EQ(forest->group, members);
      }
    }
  }
}

TEST(Around, ATakenOutPlanLeavesNoTrace) {
  const auto topology = Generate("racks:2x3@2");
  const LinkTimes one = Around(*topology, "double-binary-tree", {All(*topology)})[0].times;
  LinkTimes times = one;
  AddTo(times, Around(*topology, "ring", {All(*topology)})[0].times);
  TakeFrom(times, Around(*topology, "ring", {All(*topology)})[0].times);
  EXPECT_EQ(times, one);
}

TEST(Around, CandidatesForTheSameMembersAreMadeOnce) {
  const auto topology = Generate("switch:4");
  int made = 0;
  const std::vector<MakesForest> makers = {[&](const Topology& part) {
    ++made;
    return By("ring")(part);
  }};
  const std::vector<NodeIndex> some = {topology->members()[0], topology->members()[2]};
  const std::vector<std::vector<NodeIndex>> groups = {All(*topology), some, All(*topology), some};
  const auto plans = PlanAround(*topology, groups, {}, {.makers = makers, .orders = 1});
  ASSERT_TRUE(plans.ok()) << plans.status();
  EXPECT_EQ(made, 2);
  EXPECT_EQ((*plans)[0].times, (*plans)[2].times);
  EXPECT_EQ((*plans)[1].times, (*plans)[3].times);
}

}  // namespace
}  // namespace phub::plan
