#include "common/plan/verifier.h"

#include <functional>
#include <string>

#include "common/base/random.h"
#include "tests/unit/plan/plan_support.h"

namespace phub::plan {
namespace {

// Random topologies x all planners: every plan must pass.
TEST(Verifier, AcceptsEveryPlannersPlansOnRandomTopologies) {
  std::size_t plans = 0;
  for (int seed = 1; seed <= 25; ++seed) {
    for (const char* shape : {"random:5,switches=0", "random:8,switches=3", "random:9,switches=2",
                              "random:6,switches=3,aggregate", "random:16,switches=5"}) {
      const Topology topology = Named(std::string(shape) + ",seed=" + std::to_string(seed));
      for (const Planner& planner : Planners()) {
        if (!planner.applies(topology).ok()) continue;
        const absl::StatusOr<Forest> forest = planner.plan(topology, {.starts = 4});
        ASSERT_TRUE(forest.ok()) << planner.name << " " << topology.name() << forest.status();
        const absl::StatusOr<VerifyReport> report = Verify(topology, *forest);
        ASSERT_TRUE(report.ok()) << planner.name << " " << topology.name() << report.status();
        ++plans;
      }
    }
  }
  EXPECT_GT(plans, 500u);
}

TEST(Verifier, AcceptsEveryPlannerOnAsymmetricLinks) {
  TopologyParts parts = Named("torus:3x3").parts();
  SeededRandom random(5);
  for (Link& link : parts.links) link.capacity = 1 + static_cast<std::int64_t>(random.Below(3));
  const absl::StatusOr<Topology> topology = Topology::Create(parts);
  ASSERT_TRUE(topology.ok());
  ASSERT_FALSE(topology->IsSymmetric());
  for (const Planner& planner : Planners())
    if (planner.applies(*topology).ok()) Verified(*topology, Planned(planner.name, *topology));
}

// A valid topology may have switches that data cannot enter, or cannot leave.
TEST(Verifier, AcceptsEveryPlannerWithSwitchesOfOneDirection) {
  for (const bool leads_away : {true, false}) {
    TopologyParts parts = Named("racks:2x3").parts();
    parts.nodes.push_back({.name = "one-way", .kind = NodeKind::kSwitch});
    const NodeIndex added{static_cast<std::uint32_t>(parts.nodes.size() - 1)};
    const Link link = parts.links.front();
    const NodeIndex member =
        parts.nodes[link.from.value].kind == NodeKind::kMember ? link.from : link.to;
    parts.links.push_back({.from = leads_away ? added : member,
                           .to = leads_away ? member : added,
                           .capacity = link.capacity,
                           .latency_ns = link.latency_ns});
    const absl::StatusOr<Topology> topology = Topology::Create(parts);
    ASSERT_TRUE(topology.ok()) << topology.status();
    std::size_t plans = 0;
    for (const Planner& planner : Planners()) {
      if (!planner.applies(*topology).ok()) continue;
      Verified(*topology, Planned(planner.name, *topology));
      ++plans;
    }
    EXPECT_GE(plans, 2u);
  }
}

// One way to break a plan. Returns false if this plan cannot be broken that way.
struct Mutation {
  const char* name;
  std::function<bool(const Topology&, Forest&, SeededRandom&)> apply;
};

std::vector<Edge>& SomeEdges(Forest& forest, SeededRandom& random) {
  Tree& tree = forest.trees[random.Below(forest.trees.size())];
  return random.Chance(1, 2) ? tree.reduce : tree.gather;
}

Edge& SomeEdge(Forest& forest, SeededRandom& random) {
  std::vector<Edge>& edges = SomeEdges(forest, random);
  return edges[random.Below(edges.size())];
}

const std::vector<Mutation>& Mutations() {
  static const std::vector<Mutation> mutations = {
      {"an edge is lost",
       [](const Topology&, Forest& forest, SeededRandom& random) {
         std::vector<Edge>& edges = SomeEdges(forest, random);
         edges.erase(edges.begin() + static_cast<std::ptrdiff_t>(random.Below(edges.size())));
         return true;
       }},
      {"an edge is there twice",
       [](const Topology&, Forest& forest, SeededRandom& random) {
         std::vector<Edge>& edges = SomeEdges(forest, random);
         edges.push_back(edges[random.Below(edges.size())]);
         return true;
       }},
      {"an edge leads elsewhere",
       [](const Topology& topology, Forest& forest, SeededRandom& random) {
         Edge& edge = SomeEdge(forest, random);
         const NodeIndex other = topology.members()[random.Below(topology.members().size())];
         if (other == edge.to) return false;
         edge.to = other;  // its path still leads to the old receiver
         return true;
       }},
      {"a path is exchanged",
       [](const Topology&, Forest& forest, SeededRandom& random) {
         Edge& edge = SomeEdge(forest, random);
         const auto other =
             PathIndex{static_cast<std::uint32_t>(random.Below(forest.paths.size()))};
         if (forest.paths[other.value] == forest.paths[edge.path.value]) return false;
         const Edge before = edge;
         edge.path = other;
         // Another path between the same two members is valid.
         return other != before.path;
       }},
      {"a share grows",
       [](const Topology&, Forest& forest, SeededRandom& random) {
         ++forest.trees[random.Below(forest.trees.size())].share;
         return true;
       }},
      {"a tree is lost",
       [](const Topology&, Forest& forest, SeededRandom& random) {
         forest.trees.erase(forest.trees.begin() +
                            static_cast<std::ptrdiff_t>(random.Below(forest.trees.size())));
         return true;
       }},
      {"the home moves",
       [](const Topology& topology, Forest& forest, SeededRandom& random) {
         Tree& tree = forest.trees[random.Below(forest.trees.size())];
         const NodeIndex other = topology.members()[random.Below(topology.members().size())];
         if (other == tree.home) return false;
         tree.home = other;
         return true;
       }},
      {"a result is sent before it can be there",
       [](const Topology&, Forest& forest, SeededRandom& random) {
         Tree& tree = forest.trees[random.Below(forest.trees.size())];
         tree.gather[random.Below(tree.gather.size())].step = 0;
         return true;
       }},
      {"a partial sum is sent twice, to two receivers",
       [](const Topology&, Forest& forest, SeededRandom& random) {
         Tree& tree = forest.trees[random.Below(forest.trees.size())];
         const Tree& other = forest.trees[random.Below(forest.trees.size())];
         const Edge extra = other.reduce[random.Below(other.reduce.size())];
         tree.reduce.push_back(extra);
         return true;
       }},
      {"a path is not there",
       [](const Topology&, Forest& forest, SeededRandom& random) {
         SomeEdge(forest, random).path = PathIndex{static_cast<std::uint32_t>(forest.paths.size())};
         return true;
       }},
  };
  return mutations;
}

TEST(Verifier, RefusesEveryMutationOfGoodPlans) {
  SeededRandom random(2024);
  std::size_t refused = 0;
  for (const char* spec : {"torus:3x3", "racks:2x4@2", "bigraph:2x4", "switch:8,aggregate",
                           "random:7,switches=3,seed=3"}) {
    const Topology topology = Named(spec);
    for (const Planner& planner : Planners()) {
      if (!planner.applies(topology).ok()) continue;
      const Forest good = Planned(planner.name, topology, {.starts = 2});
      for (const Mutation& mutation : Mutations()) {
        for (int i = 0; i < 20; ++i) {
          Forest broken = good;
          if (!mutation.apply(topology, broken, random)) continue;
          const absl::StatusOr<VerifyReport> report = Verify(topology, broken);
          if (report.ok() && std::string(mutation.name) == "a path is exchanged") continue;
          ASSERT_FALSE(report.ok()) << mutation.name << ", " << planner.name << " on " << spec;
          ++refused;
        }
      }
    }
  }
  EXPECT_GT(refused, 3000u);
}

TEST(Verifier, AcceptsAnExchangedPathOnlyBetweenTheSameEnds) {
  const Topology topology = Named("torus:3x3");
  Forest forest = Planned("ring", topology);
  Edge& edge = forest.trees[0].reduce[0];
  // The other way round the row: two links instead of one.
  const NodeIndex from = edge.from, to = edge.to;
  for (const LinkIndex first : topology.OutLinks(from)) {
    const NodeIndex middle = topology.link(first).to;
    const auto second = topology.FindLink(middle, to);
    if (!second) continue;
    forest.paths.push_back({first, *second});
    edge.path = PathIndex{static_cast<std::uint32_t>(forest.paths.size() - 1)};
    EXPECT_TRUE(Verify(topology, forest).ok());
    forest.trees[0].reduce[1].path = edge.path;
    EXPECT_FALSE(Verify(topology, forest).ok());
    return;
  }
  FAIL() << "no other way";
}

std::string WhyRefused(const Topology& topology, const Forest& forest) {
  const absl::StatusOr<VerifyReport> report = Verify(topology, forest);
  return report.ok() ? "accepted" : std::string(report.status().message());
}

TEST(Verifier, NamesTreeEdgeAndReason) {
  const Topology topology = Named("ring:3");
  const Forest good = Planned("ring", topology);
  Forest late = good;
  late.trees[0].reduce[1].step = 0;
  EXPECT_EQ(
      WhyRefused(topology, late),
      "tree 0 (home m0), reduce edge m2->m0 at step 0: m2 receives a partial sum only at step 0");
  Forest twice = good;
  twice.trees[1].gather.push_back(twice.trees[1].gather.back());
  EXPECT_EQ(WhyRefused(topology, twice),
            "tree 1 (home m1), gather edge m2->m0 at step 3: m0 receives the result twice");
  Forest lost = good;
  lost.trees[2].reduce.erase(lost.trees[2].reduce.begin());
  EXPECT_EQ(WhyRefused(topology, lost),
            "tree 2 (home m2): the contribution of m0 never reaches the home");
  Forest shares = good;
  shares.trees[0].share = 2;
  EXPECT_EQ(WhyRefused(topology, shares), "the trees' shares sum to 1.33333; they must sum to 1");
}

TEST(Verifier, RefusesWaitsInACircle) {
  const Topology topology = Named("ring:4");
  Forest forest = Planned("ring", topology);
  // m1 and m2 wait for each other, and m3 does not receive their sum.
  Tree& tree = forest.trees[0];
  Forest one_more = forest;
  PathTable paths(one_more);
  tree = one_more.trees[0];
  const NodeIndex m1{1}, m2{2};
  Tree& circle = one_more.trees[0];
  circle.reduce[1] = {m2, m1, 1, paths.Intern({*topology.FindLink(m2, m1)})};
  const std::string why = WhyRefused(topology, one_more);
  EXPECT_NE(why.find("tree 0 (home m0), reduce edge m1->m2"), std::string::npos) << why;
  EXPECT_NE(why.find("cycle of waits"), std::string::npos) << why;
}

TEST(Verifier, RefusesAPathThroughAHostThatDoesNotForward) {
  TopologyParts parts = Named("ring:4").parts();
  parts.members_forward = false;
  const absl::StatusOr<Topology> hosts = Topology::Create(parts);
  ASSERT_TRUE(hosts.ok());
  const Forest star = Planned("sharded-star", Named("ring:4"));
  EXPECT_NE(WhyRefused(*hosts, star).find("which does not forward"), std::string::npos);
}

TEST(Verifier, CountsTheLoadOfEveryLinkInEveryStep) {
  const Topology topology = Named("racks:2x2@2");
  const Forest forest = Planned("sharded-star", topology);
  const VerifyReport report = Verified(topology, forest);
  ASSERT_EQ(report.steps, 2u);
  // In each step 2 members send 2 shards of 1/4 over each uplink of 1.
  EXPECT_EQ(report.step_times[0], Rational(1));
  EXPECT_EQ(report.reduce_time, Rational(1));
  EXPECT_EQ(report.total_time, Rational(2));
  std::size_t uplinks = 0;
  for (const LinkLoad& load : report.step_loads[0]) {
    const Link& link = topology.link(load.link);
    if (topology.IsMember(link.from) || topology.IsMember(link.to)) {
      EXPECT_EQ(load.share, 3);
    } else {
      EXPECT_EQ(load.share, 4);
      ++uplinks;
    }
  }
  EXPECT_EQ(uplinks, 4u);
}

}  // namespace
}  // namespace phub::plan
