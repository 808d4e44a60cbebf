// Bounds of any plan: against the exhaustive search, against plans, and where they are tight.
#include "common/plan/partition_bound.h"

#include <string>

#include "common/base/random.h"
#include "common/plan/bound.h"
#include "common/plan/forest_json.h"
#include "common/plan/simulator.h"
#include "common/plan/topology_json.h"
#include "common/plan/topology_toml.h"
#include "tests/unit/plan/plan_file.h"
#include "tests/unit/plan/plan_support.h"

namespace phub::plan {
namespace {

// Random capacities, different in the two directions of a link.
Topology Uneven(const Topology& topology, std::uint64_t seed) {
  TopologyParts parts = topology.parts();
  SeededRandom random(seed);
  for (Link& link : parts.links) link.capacity = 1 + static_cast<std::int64_t>(random.Below(5));
  return *Topology::Create(parts);
}

// The least capacity out of any set with exactly these members, over all sets of switches.
std::int64_t LeastCapacityOut(const Topology& topology, std::uint32_t members) {
  const std::size_t nodes = topology.nodes().size();
  std::int64_t least = -1;
  for (std::uint32_t set = 0; set < (1u << nodes); ++set) {
    std::uint32_t inside = 0;
    for (std::uint32_t rank = 0; rank < topology.members().size(); ++rank)
      if ((set >> topology.members()[rank].value & 1) != 0) inside |= 1u << rank;
    if (inside != members) continue;
    std::int64_t capacity = 0;
    for (const Link& link : topology.links())
      if ((set >> link.from.value & 1) != 0 && (set >> link.to.value & 1) == 0)
        capacity += link.capacity;
    least = least < 0 ? capacity : std::min(least, capacity);
  }
  return least;
}

// The greatest 2(k-1)/sum over all partitions of the members, by its definition.
Rational ExhaustiveOut(const Topology& topology) {
  const std::size_t count = topology.members().size();
  std::vector<std::int64_t> least(std::size_t{1} << count);
  for (std::uint32_t set = 1; set < least.size(); ++set)
    least[set] = LeastCapacityOut(topology, set);
  Rational best;
  std::vector<std::size_t> group(count, 0);  // every partition once: group[i] <= 1 + those before
  const auto visit = [&](auto&& self, std::size_t rank, std::size_t groups) -> void {
    if (rank < count) {
      for (group[rank] = 0; group[rank] <= groups; ++group[rank])
        self(self, rank + 1, std::max(groups, group[rank] + 1));
      return;
    }
    if (groups < 2) return;
    std::vector<std::uint32_t> sets(groups, 0);
    for (std::size_t i = 0; i < count; ++i) sets[group[i]] |= 1u << i;
    std::int64_t capacity = 0;
    for (const std::uint32_t set : sets) capacity += least[set];
    best = std::max(best, Fraction(2 * static_cast<std::int64_t>((groups - 1) * count) *
                                       topology.unit_capacity(),
                                   capacity));
  };
  visit(visit, 0, 0);
  return best;
}

// The bound of these groups for links out of the sets. Every member must be in one group.
Rational BoundOfGroups(const Topology& topology,
                       const std::vector<std::vector<NodeIndex>>& groups) {
  std::uint32_t all = 0;
  std::int64_t capacity = 0;
  for (const std::vector<NodeIndex>& group : groups) {
    std::uint32_t set = 0;
    for (const NodeIndex member : group) set |= 1u << topology.RankOf(member);
    EXPECT_EQ(all & set, 0u);
    all |= set;
    capacity += LeastCapacityOut(topology, set);
  }
  const auto members = static_cast<std::int64_t>(topology.members().size());
  EXPECT_EQ(all, (1u << members) - 1);
  return Fraction(
      2 * (static_cast<std::int64_t>(groups.size()) - 1) * members * topology.unit_capacity(),
      capacity);
}

TEST(PartitionBound, EqualsTheExhaustiveSearchOnRandomTopologies) {
  for (int seed = 0; seed < 20; ++seed) {
    for (const int switches : {0, 2, 4}) {
      const Topology even =
          Named("random:5,switches=" + std::to_string(switches) + ",seed=" + std::to_string(seed));
      for (const Topology& topology : {even, Uneven(even, static_cast<std::uint64_t>(seed))}) {
        const Rational expected =
            std::max(ExhaustiveOut(topology), ExhaustiveOut(topology.Reversed()));
        const PartitionBound bound = BoundOfPartitions(topology);
        SCOPED_TRACE(testing::Message() << topology.name() << " seed " << seed
                                        << ", symmetric: " << topology.IsSymmetric());
        EXPECT_EQ(bound.chunk_times, expected);
        EXPECT_EQ(std::max(BoundOfGroups(topology, bound.groups),
                           BoundOfGroups(topology.Reversed(), bound.groups)),
                  expected);
      }
    }
  }
}

// Checks every planner's plan: the load of its busiest link exactly, and its simulated time.
// Returns the least load, in chunk times.
Rational LeastLoad(const Topology& topology) {
  const ExchangeBound bound = BoundOf(topology).value();
  const Rational members(static_cast<std::int64_t>(topology.members().size()));
  constexpr std::int64_t kSize = 100'000'000;
  Rational least(1'000'000);
  for (const Planner& planner : Planners()) {
    if (!planner.applies(topology).ok()) continue;
    const absl::StatusOr<Forest> forest = planner.plan(topology, {.starts = 2});
    if (!forest.ok()) continue;
    const Rational& floor =
        SumsInSwitches(topology, *forest) ? bound.narrowest.chunk_times : bound.members_sum();
    const Rational load = Multiply(Verified(topology, *forest).total_time, members).value();
    EXPECT_NEAR(BusiestTime(PlanFile(ForestToJson(topology, *forest)), TopologyToJson(topology)) *
                    members.ToDouble(),
                load.ToDouble(), 1e-9 * load.ToDouble());
    EXPECT_GE(load, floor) << planner.name << " on " << topology.name();
    least = std::min(least, load);
    for (const std::uint32_t pieces : {1u, 16u}) {
      if (EdgeCount(*forest) * pieces > 4096) continue;
      for (const SimulationMode mode : {SimulationMode::kFlow, SimulationMode::kLockstep}) {
        const auto result =
            Simulate(topology, *forest, {.size_bytes = kSize, .pieces = pieces, .mode = mode});
        EXPECT_TRUE(result.ok()) << result.status();
        EXPECT_GE(result->seconds(), SecondsFor(topology, floor, kSize) * (1 - 1e-9))
            << planner.name << " on " << topology.name();
        for (const double use : result->link_use) EXPECT_LE(use, 1 + 1e-9);
      }
    }
  }
  return least;
}

TEST(PartitionBound, NoPlanIsFaster) {
  for (int seed = 0; seed < 8; ++seed) {
    for (const char* shape : {"random:5,switches=0", "random:8,switches=0", "random:8,switches=4",
                              "random:7,switches=3,aggregate"}) {
      const Topology even = Named(std::string(shape) + ",latency=0s,seed=" + std::to_string(seed));
      LeastLoad(even);
      LeastLoad(Uneven(even, static_cast<std::uint64_t>(seed)));
    }
  }
  for (const char* spec : {"torus:4x4,latency=0s", "mesh:4x4,latency=0s", "racks:4x4@4,latency=0s",
                           "bigraph:2x4,latency=0s", "switch:8,latency=0s,aggregate"})
    LeastLoad(Named(spec));
}

TEST(PartitionBound, IsTightOnRegularTopologies) {
  for (const char* spec : {"ring:8", "torus:4x4", "switch:8", "racks:4x4@2", "bigraph:2x4"}) {
    const Topology topology = Named(spec);
    const ExchangeBound bound = BoundOf(topology).value();
    EXPECT_EQ(bound.members_sum(), bound.one_after_the_other) << spec;
    EXPECT_EQ(LeastLoad(topology), bound.members_sum()) << spec;
  }
}

// Four racks at one server, as the strength of a star: every partition into single nodes has the
// same ratio. One home at the server reaches the bound, with both phases at once.
TEST(PartitionBound, IsTightWhereThePhasesOverlap) {
  TopologyParts parts;
  parts.name = "star";
  parts.members_forward = true;
  parts.nodes = {{"server"}, {"a"}, {"b"}, {"c"}, {"d"}};
  for (std::uint32_t leaf = 1; leaf < 5; ++leaf)
    for (const bool up : {true, false})
      parts.links.push_back({NodeIndex{up ? leaf : 0}, NodeIndex{up ? 0 : leaf}, 1, 0});
  const Topology topology = *Topology::Create(parts);
  const ExchangeBound bound = BoundOf(topology).value();
  EXPECT_EQ(bound.members_sum(), Rational(5));  // all data on a unit link
  EXPECT_EQ(bound.one_after_the_other, Rational(8));
  Forest forest = Planned("sharded-star", topology);
  forest.trees.resize(1);
  forest.trees[0].share = forest.share_unit;
  EXPECT_EQ(Verified(topology, forest).total_time, Rational(1));
  const auto result = Simulate(topology, forest, {.size_bytes = 1 << 30, .pieces = 256});
  EXPECT_LT(result->seconds(), 1.01 * SecondsFor(topology, bound.members_sum(), 1 << 30));
}

// An uneven tree of three levels. Racks send and receive through different links at the same time,
// so plans beat the sum of both phases' bounds by far.
TEST(PartitionBound, HoldsOnAnUnevenTreeWhereTheSumOfThePhasesDoesNot) {
  std::string text = "name = \"uneven tree\"\nlatency = \"0s\"\nmembers = [";
  std::string links;
  const auto connect = [&](const std::string& from, const std::string& to, const char* bandwidth) {
    links += "[[link]]\nfrom = \"" + from + "\"\nto = \"" + to + "\"\nbandwidth = \"" + bandwidth +
             "\"\n";
  };
  int host = 0;
  for (const auto& [rack, hosts] : {std::pair{"r0", 7}, {"r1", 5}, {"r2", 3}, {"r3", 2}}) {
    for (int i = 0; i < hosts; ++i, ++host) {
      text += (host == 0 ? "\"h" : ", \"h") + std::to_string(host) + "\"";
      connect("h" + std::to_string(host), rack, "1");
    }
  }
  connect("r0", "p0", "7/3");
  connect("r1", "p0", "5/2");
  connect("r2", "p1", "1");
  connect("r3", "p1", "1/3");
  connect("p0", "core", "3/2");
  connect("p1", "core", "5/7");
  text += "]\nswitches = [\"r0\", \"r1\", \"r2\", \"r3\", \"p0\", \"p1\", \"core\"]\n";
  const absl::StatusOr<Topology> topology = ParseTopologyToml(text + links);
  ASSERT_TRUE(topology.ok()) << topology.status();
  const ExchangeBound bound = BoundOf(*topology).value();
  EXPECT_EQ(bound.one_after_the_other, Rational(90));
  EXPECT_EQ(bound.members_sum(), Rational(51));  // all 17 chunks over r3's uplink of 1/3
  EXPECT_EQ(LeastLoad(*topology), Rational(51));
}

}  // namespace
}  // namespace phub::plan
