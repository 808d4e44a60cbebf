#include "common/plan/bound.h"

#include "tests/unit/plan/plan_support.h"

namespace phub::plan {
namespace {

Rational Gather(std::string_view spec) { return GatherBound(Named(spec)).chunk_times; }

TEST(Bound, IsTheExactCutOfDirectNetworks) {
  EXPECT_EQ(Gather("torus:4x4"), Fraction(15, 4));
  EXPECT_EQ(Gather("torus:8x8"), Fraction(63, 4));
  EXPECT_EQ(Gather("mesh:4x4"), Fraction(15, 2));
  EXPECT_EQ(Gather("ring:8"), Fraction(7, 2));
}

TEST(Bound, IsTheExactCutOfSwitchedNetworks) {
  EXPECT_EQ(Gather("switch:16"), Rational(15));
  EXPECT_EQ(Gather("bigraph:4x8"), Rational(31));
  EXPECT_EQ(Gather("fattree:4x4"), Rational(15));
  EXPECT_EQ(Gather("fattree:8x8"), Rational(63));
  EXPECT_EQ(Gather("racks:4x8@4"), Rational(31));
  // 8 racks of 4 behind uplinks of 2/3: the 28 chunks of 7 racks must enter the eighth.
  EXPECT_EQ(Gather("racks:8x4@6"), Rational(42));
}

TEST(Bound, FindsACutThatIsNotASingleMember) {
  const Topology topology = Named("racks:4x4@8");  // uplinks of 1/2: 12 chunks into each rack
  const CutBound bound = GatherBound(topology);
  EXPECT_EQ(bound.chunk_times, Rational(24));
  std::size_t members = 0;
  for (const NodeIndex node : bound.cut) members += topology.IsMember(node) ? 1 : 0;
  EXPECT_EQ(members, 12u);
}

TEST(Bound, TellsApartWhatAggregatingSwitchesCouldDo) {
  const ExchangeBound bound = BoundOf(Named("switch:16,aggregate")).value();
  EXPECT_EQ(bound.one_after_the_other, Rational(30));    // 2(N-1) chunks in and out of hosts
  EXPECT_EQ(bound.members_sum(), Rational(30));          // overlap does not help here
  EXPECT_EQ(bound.narrowest.chunk_times, Rational(16));  // all of the data each way
}

TEST(Bound, CountsReduceScatterOnTheLinksTurnedRound) {
  // a is fast to reach and slow to leave, so leaving a limits the gather.
  TopologyParts parts;
  parts.name = "one slow way";
  parts.nodes = {{"a"}, {"b"}};
  parts.links = {{NodeIndex{0}, NodeIndex{1}, 1, 0}, {NodeIndex{1}, NodeIndex{0}, 3, 0}};
  const auto topology = Topology::Create(parts);
  ASSERT_TRUE(topology.ok());
  const ExchangeBound bound = BoundOf(*topology).value();
  EXPECT_EQ(bound.gather.chunk_times, Rational(1));
  EXPECT_EQ(bound.reduce.chunk_times, Rational(1));
  EXPECT_EQ(bound.one_after_the_other, Rational(2));
  EXPECT_EQ(bound.members_sum(), Rational(2));
}

TEST(Bound, ScalesWithTheUnit) {
  // 100 Gbit/s is 12.5e9 bytes/s: 15/4 chunks of 1/16 of 16e9 bytes take 0.3 s.
  const Topology topology = Named("torus:4x4");
  EXPECT_DOUBLE_EQ(SecondsFor(topology, Gather("torus:4x4"), 16e9), 0.3);
}

// The bound by its definition, over all sets.
Rational Exhaustive(const Topology& topology) {
  const std::size_t count = topology.nodes().size();
  Rational best;
  for (std::uint32_t set = 1; set + 1 < (1u << count); ++set) {
    std::int64_t members = 0, capacity = 0;
    for (std::uint32_t node = 0; node < count; ++node)
      if ((set >> node & 1) != 0 && topology.IsMember(NodeIndex{node})) ++members;
    for (const Link& link : topology.links())
      if ((set >> link.from.value & 1) != 0 && (set >> link.to.value & 1) == 0)
        capacity += link.capacity;
    if (members == static_cast<std::int64_t>(topology.members().size())) continue;
    const auto time = Rational::Make(Wide{members} * topology.unit_capacity(), capacity);
    if (time) best = std::max(best, *time);
  }
  return best;
}

TEST(Bound, EqualsTheExhaustiveSearchOnRandomTopologies) {
  for (int seed = 0; seed < 40; ++seed) {
    for (const int switches : {0, 2, 4}) {
      const Topology topology =
          Named("random:6,switches=" + std::to_string(switches) + ",seed=" + std::to_string(seed));
      EXPECT_EQ(GatherBound(topology).chunk_times, Exhaustive(topology)) << topology.name();
    }
  }
}

}  // namespace
}  // namespace phub::plan
