// FRED's network: its graph, its routing, and the plans of groups on it. The figures are those of
// the paper's claim for placements of 3D-parallel training.
#include "common/plan/groups/fred.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>

#include "common/plan/forest_json.h"
#include "common/plan/groups/compiler.h"
#include "tests/unit/plan/plan_file.h"
#include "tests/unit/plan/plan_support.h"

namespace phub::plan {
namespace {

using ::testing::HasSubstr;

using Ports = std::vector<std::uint32_t>;

// The flows of each phase with these degrees of parallelism: all-reduces of tensor and data groups;
// the first member of a stage sends to all members of the next stage.
std::vector<std::vector<FredFlow>> PhasesOf(std::uint32_t tensor, std::uint32_t data,
                                            std::uint32_t pipeline) {
  const auto port = [&](std::uint32_t m, std::uint32_t d, std::uint32_t p) {
    return (d * pipeline + p) * tensor + m;
  };
  std::vector<FredFlow> tensors, stages, replicas;
  for (std::uint32_t d = 0; d < data; ++d) {
    for (std::uint32_t p = 0; p < pipeline; ++p) {
      Ports ports, next;
      for (std::uint32_t m = 0; m < tensor; ++m) {
        ports.push_back(port(m, d, p));
        next.push_back(port(m, d, p + 1));
      }
      if (tensor > 1) tensors.push_back({ports, ports});
      if (p + 1 < pipeline) stages.push_back({{port(0, d, p)}, next});
    }
  }
  for (std::uint32_t m = 0; m < tensor && data > 1; ++m) {
    for (std::uint32_t p = 0; p < pipeline; ++p) {
      Ports ports;
      for (std::uint32_t d = 0; d < data; ++d) ports.push_back(port(m, d, p));
      replicas.push_back({ports, ports});
    }
  }
  std::vector<std::vector<FredFlow>> phases;
  for (auto& flows : {tensors, replicas, stages})
    if (!flows.empty()) phases.push_back(flows);
  return phases;
}

// The paths of a routed phase share no link between different flows. Large networks are left out,
// since they have many paths.
void ExpectDisjoint(const FredShape& shape, const std::vector<FredFlow>& flows,
                    const FredRoutes& routes) {
  if (shape.ports > 24) return;
  std::map<std::pair<std::string, std::string>, std::size_t> flow_of;
  for (std::size_t flow = 0; flow < flows.size(); ++flow) {
    for (const std::uint32_t input : flows[flow].inputs) {
      for (const std::uint32_t output : flows[flow].outputs) {
        const auto path = FredPath(shape, input, output, routes.middles[flow]);
        for (std::size_t i = 0; i + 1 < path.size(); ++i)
          ASSERT_EQ(flow_of.try_emplace({path[i], path[i + 1]}, flow).first->second, flow)
              << path[i] << "->" << path[i + 1];
      }
    }
  }
}

// Placements that differ may have the same flows, in another order.
FredVerdict VerdictWithTwo(std::uint32_t ports, const std::vector<FredFlow>& flows) {
  using Key = std::pair<std::uint32_t, std::set<std::string>>;
  static std::map<Key, FredVerdict> known;
  Key key{ports, {}};
  for (const FredFlow& flow : flows) {
    std::string text;
    for (const auto* list : {&flow.inputs, &flow.outputs}) {
      text += '/';
      for (const std::uint32_t port : *list) text += ' ' + std::to_string(port);
    }
    key.second.insert(text);
  }
  const auto [found, is_new] = known.try_emplace(key, FredVerdict::kUnknown);
  if (!is_new) return found->second;
  const FredRoutes routes = RouteFlows({ports, 2}, flows);
  if (routes.verdict == FredVerdict::kRouted) ExpectDisjoint({ports, 2}, flows, routes);
  return found->second = routes.verdict;
}

TEST(Fred, RoutesEveryPlacementWithThreeMiddleNetworks) {
  int phases = 0, conflicts_with_2 = 0;
  std::vector<std::uint32_t> sizes = {36, 40, 48, 64};
  for (std::uint32_t ports = 2; ports <= 32; ++ports) sizes.push_back(ports);
  for (const std::uint32_t ports : sizes) {
    for (std::uint32_t tensor = 1; tensor <= ports; ++tensor) {
      for (std::uint32_t data = 1; tensor * data <= ports; ++data) {
        if (ports % (tensor * data) != 0) continue;
        for (const auto& flows : PhasesOf(tensor, data, ports / tensor / data)) {
          ++phases;
          const FredRoutes routes = RouteFlows({ports, 3}, flows);
          ASSERT_EQ(routes.verdict, FredVerdict::kRouted) << ports << " " << tensor << " " << data;
          ExpectDisjoint({ports, 3}, flows, routes);
          const FredVerdict with_2 = VerdictWithTwo(ports, flows);
          ASSERT_NE(with_2, FredVerdict::kUnknown) << ports << " " << tensor << " " << data;
          conflicts_with_2 += with_2 == FredVerdict::kConflict ? 1 : 0;
        }
      }
    }
  }
  EXPECT_EQ(phases, 858);
  EXPECT_EQ(conflicts_with_2, 135);
}

// Groups at random cannot always be routed with three middle networks, but nearly always.
TEST(Fred, RoutesMostRandomGroups) {
  std::mt19937 random(1);
  std::map<std::uint32_t, int> routed;  // by middle networks
  constexpr int kTrials = 200;
  for (int trial = 0; trial < kTrials; ++trial) {
    Ports ports(20);
    for (std::uint32_t i = 0; i < 20; ++i) ports[i] = i;
    for (std::size_t i = 20; i > 1; --i) std::swap(ports[i - 1], ports[random() % i]);
    std::vector<FredFlow> flows;
    while (ports.size() > 1) {
      const auto count = std::min<std::size_t>(2 + random() % 4, ports.size());
      Ports group(ports.end() - static_cast<std::ptrdiff_t>(count), ports.end());
      ports.resize(ports.size() - count);
      std::sort(group.begin(), group.end());
      flows.push_back({group, group});
    }
    for (const std::uint32_t middles : {3u, 4u}) {
      const FredRoutes routes = RouteFlows({20, middles}, flows);
      ASSERT_NE(routes.verdict, FredVerdict::kUnknown);
      if (routes.verdict != FredVerdict::kRouted) continue;
      ++routed[middles];
      ExpectDisjoint({20, middles}, flows, routes);
    }
  }
  EXPECT_GE(routed[3], kTrials * 93 / 100);
  EXPECT_LT(routed[3], kTrials);
  EXPECT_EQ(routed[4], kTrials);
}

TEST(Fred, HasTwoLevelsOfSwitchesAroundEachMiddleNetwork) {
  const Topology even = Named("fred:8,3");
  // 4 + 4 switches, and three networks with 2 + 2 switches and three switches inside.
  EXPECT_EQ(even.nodes().size(), 8u + 8 + 3 * (4 + 3));
  EXPECT_EQ(even.links().size(), 2u * 8 + 2 * 3 * 4 + 3 * 2 * 3 * 2);
  EXPECT_TRUE(even.FindLink(*even.FindNode("in3"), *even.FindNode("2.in1")).has_value());
  EXPECT_TRUE(even.FindLink(*even.FindNode("2.0.sw"), *even.FindNode("2.out1")).has_value());
  const Topology odd = Named("fred:5,2");
  EXPECT_EQ(odd.node(*odd.FindNode("demux")).kind, NodeKind::kSwitch);
  EXPECT_TRUE(odd.FindLink(*odd.FindNode("m4"), *odd.FindNode("demux")).has_value());
  EXPECT_TRUE(odd.FindLink(*odd.FindNode("1.mux"), *odd.FindNode("mux")).has_value());
  EXPECT_EQ(FredShapeOf(odd)->ports, 5u);
  EXPECT_EQ(FredShapeOf(odd)->middles, 2u);
  // A network with the name of another one.
  TopologyParts parts = odd.parts();
  parts.name = "fred:5,3";
  EXPECT_FALSE(FredShapeOf(*Topology::Create(parts)).has_value());
  for (const char* bad : {"fred:8", "fred:8,", "fred:8,1", "fred:8,99", "fred:8,x", "fred:8x8,3"})
    EXPECT_FALSE(Generate(bad).ok()) << bad;
  EXPECT_THAT(Why(Generate("fred:4096,8")), HasSubstr("at most 16384 are allowed"));
  EXPECT_THAT(Why(Generate("fred:1,3")), HasSubstr("members must be from 2"));
}

// The links of one plan file that lie between switches.
std::set<PlanFile::Ends> LinksBetweenSwitches(const PlanFile& plan, double& busiest) {
  std::set<PlanFile::Ends> links;
  for (const auto& [ends, load] : plan.Loads()) {
    busiest = std::max(busiest, load);
    if (!ends.first.starts_with("m") && !ends.second.starts_with("m")) links.insert(ends);
  }
  return links;
}

void ExpectPlansOfTurnsAreDisjoint(const Topology& topology, const CompiledGroups& compiled) {
  for (const CompiledPhase& phase : compiled.phases) {
    std::map<std::pair<std::uint32_t, PlanFile::Ends>, std::uint32_t> user;  // turn, link
    double busiest = 0;
    for (const std::uint32_t i : phase.groups) {
      const PlanFile plan(ForestToJson(topology, compiled.groups[i].forest));
      for (const auto& ends : LinksBetweenSwitches(plan, busiest))
        EXPECT_EQ(user.try_emplace({compiled.groups[i].turn, ends}, i).first->second, i)
            << ends.first << "->" << ends.second;
    }
    EXPECT_NEAR(busiest, std::max(phase.load, phase.members_load).ToDouble(), 1e-9);
    EXPECT_LE(phase.load, Rational(2));
    EXPECT_EQ(phase.members_load, Rational(1));
  }
}

TEST(Fred, PlansOfGroupsShareNoLink) {
  for (const auto& [spec, degrees] :
       {std::pair{"fred:16,3", Parallelism{4, 2, 2}}, std::pair{"fred:15,3", Parallelism{3, 5, 1}},
        std::pair{"fred:64,3", Parallelism{4, 2, 8}}}) {
    const Topology topology = Named(spec);
    const auto groups = ParallelGroups(topology, degrees, 1 << 20);
    ASSERT_TRUE(groups.ok()) << groups.status();
    const auto compiled = CompileGroups(topology, *groups, {.pieces = 2});
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    ExpectPlansOfTurnsAreDisjoint(topology, *compiled);
    for (const CompiledPhase& phase : compiled->phases) {
      EXPECT_EQ(phase.turns, 1u);
      EXPECT_EQ(phase.conflicts, 0);
    }
  }
}

// Six ports as three replicas of two members: the first conflict with two middle networks.
TEST(Fred, GroupsThatCannotBeRoutedTogetherTakeTurns) {
  const Topology topology = Named("fred:6,2");
  const auto groups = ParallelGroups(topology, {.tensor = 1, .pipeline = 3, .data = 2}, 1 << 20);
  ASSERT_TRUE(groups.ok()) << groups.status();
  const auto compiled = CompileGroups(topology, *groups, {.pieces = 2});
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  ExpectPlansOfTurnsAreDisjoint(topology, *compiled);
  const CompiledPhase& data = compiled->phases.back();
  EXPECT_EQ(data.phase, Phase::kData);
  EXPECT_EQ(data.turns, 2u);
  EXPECT_EQ(data.conflicts, 1);
  EXPECT_TRUE(data.is_proven);
  std::map<std::uint32_t, double> seconds;  // by turn
  for (const std::uint32_t i : data.groups) {
    const CompiledGroup& group = compiled->groups[i];
    seconds[group.turn] = std::max(seconds[group.turn], group.seconds_together);
  }
  EXPECT_EQ(seconds.size(), 2u);
  EXPECT_NEAR(data.seconds, seconds[0] + seconds[1], 1e-12);
}

}  // namespace
}  // namespace phub::plan
