// Planners that choose senders and receivers only, where members relay.
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "common/base/random.h"
#include "common/plan/forest_json.h"
#include "common/plan/topology_json.h"
#include "tests/unit/plan/gpu_servers.h"
#include "tests/unit/plan/plan_file.h"
#include "tests/unit/plan/plan_support.h"

namespace phub::plan {
namespace {

constexpr const char* kPlanners[] = {"sharded-star", "ring", "halving-doubling",
                                     "double-binary-tree"};

// Random links, whose ends do not forward.
Topology WithoutForwarding(int seed, bool is_even) {
  TopologyParts parts = Named("random:8,switches=0,seed=" + std::to_string(seed)).parts();
  parts.members_forward = false;
  SeededRandom random(static_cast<std::uint64_t>(seed));
  for (Link& link : parts.links)
    if (!is_even) link.capacity = 1 + static_cast<std::int64_t>(random.Below(4));
  return *Topology::Create(parts);
}

TEST(Relay, PlansAreValidOnServersWithGpus) {
  for (const Topology& topology : {Ndv2(1), Ndv2(2), Ndv2(4), Dgx2()})
    for (const char* planner : kPlanners) Verified(topology, Planned(planner, topology));
}

TEST(Relay, PlansAreValidOnGeneralGraphs) {
  for (int seed = 0; seed < 30; ++seed)
    for (const bool is_even : {true, false})
      for (const char* planner : kPlanners) {
        const Topology topology = WithoutForwarding(seed, is_even);
        Verified(topology, Planned(planner, topology));
      }
}

// Distances between members in links, by the topology file.
std::map<PlanFile::Ends, int> Distances(const std::string& topology_json) {
  std::map<PlanFile::Ends, int> distances;
  std::vector<std::string> names;
  const nlohmann::json json = nlohmann::json::parse(topology_json);
  for (const auto& node : json.at("nodes")) names.push_back(node.at("name"));
  for (const auto& [ends, bandwidth] : Bandwidths(topology_json)) distances[ends] = 1;
  for (const std::string& by : names)
    for (const std::string& from : names)
      for (const std::string& to : names) {
        const auto first = distances.find({from, by}), second = distances.find({by, to});
        if (first == distances.end() || second == distances.end() || from == to) continue;
        const int sum = first->second + second->second;
        const auto [found, is_new] = distances.try_emplace({from, to}, sum);
        if (!is_new) found->second = std::min(found->second, sum);
      }
  return distances;
}

// A star sends over shortest chains: every member is as deep in a tree as it is
// far from the home.
TEST(Relay, StarsUseShortestChains) {
  for (const Topology& topology :
       {Ndv2(2), WithoutForwarding(3, true), WithoutForwarding(4, false)}) {
    const std::map<PlanFile::Ends, int> distances = Distances(TopologyToJson(topology));
    const PlanFile plan(ForestToJson(topology, Planned("sharded-star", topology)));
    for (const auto& tree : plan.trees) {
      std::map<std::string, int> depth{{tree.home, 0}};
      for (const auto& edge : tree.gather) {
        depth[edge.to] = depth.at(edge.from) + 1;
        EXPECT_EQ(depth[edge.to], distances.at({tree.home, edge.to})) << tree.home << edge.to;
      }
      EXPECT_EQ(depth.size(), topology.members().size());
    }
  }
}

// The links of one server contain a ring of its 8 GPUs, so nobody relays.
TEST(Relay, RingsNeedNoRelayWhereTheGraphHasARing) {
  const Topology topology = Ndv2(1);
  const PlanFile plan(ForestToJson(topology, Planned("ring", topology)));
  const std::map<PlanFile::Ends, double> loads = plan.Loads();
  EXPECT_EQ(loads.size(), 8u);
  for (const auto& [ends, load] : loads) EXPECT_NEAR(load, 2 * 7.0 / 8, 1e-9);
}

// Only the pairs that the plan uses have links, so other pairs would need a relay.
TEST(Relay, APlanWhoseEdgesAreAllLinksKeepsItsSteps) {
  const Topology hub = Named("switch:8");
  const Forest expected = Planned("double-binary-tree", hub);
  TopologyParts parts;
  for (int i = 0; i < 8; ++i) parts.nodes.push_back({"m" + std::to_string(i)});
  std::map<std::pair<std::uint32_t, std::uint32_t>, bool> is_linked;
  for (const Tree& tree : expected.trees)
    for (const auto* edges : {&tree.reduce, &tree.gather})
      for (const Edge& edge : *edges) {
        const std::uint32_t from = hub.RankOf(edge.from), to = hub.RankOf(edge.to);
        if (!std::exchange(is_linked[{from, to}], true))
          parts.links.push_back({NodeIndex{from}, NodeIndex{to}, 1, 0});
      }
  const Topology direct = *Topology::Create(parts);
  const Forest plan = Planned("double-binary-tree", direct);
  Verified(direct, plan);
  ASSERT_EQ(plan.trees.size(), expected.trees.size());
  for (std::size_t i = 0; i < plan.trees.size(); ++i)
    for (const auto edges : {&Tree::reduce, &Tree::gather}) {
      const std::vector<Edge>& have = plan.trees[i].*edges;
      const std::vector<Edge>& want = expected.trees[i].*edges;
      ASSERT_EQ(have.size(), want.size());
      for (std::size_t e = 0; e < have.size(); ++e) {
        EXPECT_EQ(have[e].from.value, hub.RankOf(want[e].from));
        EXPECT_EQ(have[e].to.value, hub.RankOf(want[e].to));
        EXPECT_EQ(have[e].step, want[e].step);
      }
    }
}

}  // namespace
}  // namespace phub::plan
