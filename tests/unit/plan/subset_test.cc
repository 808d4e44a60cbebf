// Plans for some members, by every planner: others neither sum nor relay, and equal input gives the
// equal plan.
#include "common/plan/subset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "common/plan/forest_json.h"
#include "common/plan/generators.h"
#include "common/plan/planners/planner.h"
#include "common/plan/verifier.h"

namespace phub::plan {
namespace {

std::vector<NodeIndex> Pick(const Topology& topology, std::uint32_t bits) {
  std::vector<NodeIndex> members;
  for (std::uint32_t rank = 0; rank < topology.members().size(); ++rank)
    if ((bits >> rank & 1) != 0) members.push_back(topology.members()[rank]);
  return members;
}

absl::StatusOr<Forest> PlanWith(const Planner& planner, const Topology& topology,
                                const std::vector<NodeIndex>& members) {
  return PlanForMembers(topology, members, [&](const Topology& part) {
    return MakePlan(planner, part, {.starts = 2});
  });
}

class Subsets : public ::testing::TestWithParam<const char*> {};

TEST_P(Subsets, EveryPlannerThatAppliesPlansForThemOnly) {
  const auto topology = Generate(GetParam());
  ASSERT_TRUE(topology.ok());
  int made = 0;
  for (const std::uint32_t bits : {0b101u, 0b110u, 0b111u, 0b1011u}) {
    const std::vector<NodeIndex> members = Pick(*topology, bits);
    const auto part = WithMembers(*topology, members);
    ASSERT_TRUE(part.ok()) << part.status();
    for (const Planner& planner : Planners()) {
      if (!planner.applies(*part).ok()) continue;
      const auto forest = PlanWith(planner, *topology, members);
      ASSERT_TRUE(forest.ok()) << planner.name << ": " << forest.status();
      EXPECT_EQ(forest->group, members);
      for (const Tree& tree : forest->trees) {
        for (const auto* const edges : {&tree.reduce, &tree.gather})
          for (const Edge& edge : *edges)
            for (const NodeIndex end : {edge.from, edge.to})
              EXPECT_NE(std::ranges::find(members, end), members.end()) << planner.name;
      }
      const auto read =
          ParseForestJson(*topology, ForestToJson(*topology, *forest), PlanScope::kGroupsToo);
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ(ForestToJson(*topology, *read),
                ForestToJson(*topology, *PlanWith(planner, *topology, members)));
      ++made;
    }
  }
  EXPECT_GE(made, 4 * 3);
}
INSTANTIATE_TEST_SUITE_P(Topologies, Subsets,
                         ::testing::Values("switch:5", "switch:4,aggregate", "ring:5", "torus:2x2",
                                           "racks:2x2@4", "racks:2x3@1"));

TEST(Subset, AllMembersGiveAnOrdinaryPlan) {
  const auto topology = Generate("switch:3");
  const auto forest = PlanWith(*FindPlanner("ring"), *topology, Pick(*topology, 0b111));
  ASSERT_TRUE(forest.ok());
  EXPECT_TRUE(forest->group.empty());
}

// The only way from a to c leads through the host of b, whose daemon takes no part.
TEST(Subset, HostsOfOthersForwardWhereMembersDo) {
  TopologyParts parts;
  parts.name = "line";
  for (const char* const name : {"a", "b", "c"}) parts.nodes.push_back({.name = name});
  for (const auto& [from, to] : {std::pair(0u, 1u), {1u, 0u}, {1u, 2u}, {2u, 1u}})
    parts.links.push_back({.from = NodeIndex{from}, .to = NodeIndex{to}});
  parts.members_forward = true;
  const auto line = Topology::Create(parts);
  ASSERT_TRUE(line.ok()) << line.status();
  const auto forest = PlanWith(*FindPlanner("ring"), *line, Pick(*line, 0b101));
  ASSERT_TRUE(forest.ok()) << forest.status();
  for (const Path& path : forest->paths) EXPECT_EQ(path.size(), 2u);
}

}  // namespace
}  // namespace phub::plan
