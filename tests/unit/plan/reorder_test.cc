// Rank reordering.
#include "common/plan/reorder.h"

#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/plan/simulator.h"
#include "tests/unit/plan/plan_support.h"

namespace phub::plan {
namespace {

// The time of an all-reduce step by step, in units of the time of all data on a host's link.
double Lockstep(const Topology& topology, const Forest& forest) {
  return Verified(topology, forest).lockstep_time;
}

std::vector<NodeIndex> Shuffled(const Topology& topology, std::uint64_t seed) {
  SeededRandom random(seed);
  std::vector<NodeIndex> order(topology.members().begin(), topology.members().end());
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
  return order;
}

TEST(Reorder, BringsARandomRingOnOversubscribedRacksToItsBest) {
  const Topology topology = Named("racks:4x8@4,latency=0s");
  const Forest ring = Planned("ring", topology);
  const CostMatrix costs = *CostsOf(topology, 1 << 20);
  double sum = 0;
  constexpr int kOrders = 400;
  for (int seed = 0; seed < kOrders; ++seed) {
    const Forest random =
        *Relabel(topology, ring, Shuffled(topology, static_cast<std::uint64_t>(seed)));
    sum += Lockstep(topology, random);
    if (seed >= 3) continue;
    const auto better = Reorder(topology, random, costs, {.size_bytes = 1 << 26});
    ASSERT_TRUE(better.ok()) << better.status();
    EXPECT_DOUBLE_EQ(Lockstep(topology, better->forest), 1.9375);  // 2*31/32: no uplink is busy
    EXPECT_LT(better->seconds_after, better->seconds_before);
  }
  EXPECT_NEAR(sum / kOrders, 6.9, 0.1);
}

TEST(Reorder, GainsNothingOnAFlatNetwork) {
  const Topology topology = Named("racks:4x8@1,latency=0s");
  const Forest ring = Planned("ring", topology);
  const Forest random = *Relabel(topology, ring, Shuffled(topology, 1));
  EXPECT_DOUBLE_EQ(Lockstep(topology, random), 1.9375);
  const auto better =
      Reorder(topology, random, *CostsOf(topology, 1 << 20), {.size_bytes = 1 << 26});
  ASSERT_TRUE(better.ok());
  EXPECT_DOUBLE_EQ(better->seconds_before, better->seconds_after);
}

TEST(Reorder, ServesHalvingDoublingToo) {
  const Topology topology = Named("racks:4x8@4,latency=0s");
  const Forest plan = Planned("halving-doubling", topology);
  const Forest random = *Relabel(topology, plan, Shuffled(topology, 3));
  const auto better =
      Reorder(topology, random, *CostsOf(topology, 1 << 20), {.size_bytes = 1 << 26});
  ASSERT_TRUE(better.ok());
  EXPECT_LE(Lockstep(topology, better->forest), 2.5);
}

TEST(Reorder, RefusesAMatrixOfAnotherSize) {
  const Topology topology = Named("ring:4");
  EXPECT_FALSE(Reorder(topology, Planned("ring", topology), CostMatrix(3), {.size_bytes = 1}).ok());
}

}  // namespace
}  // namespace phub::plan
