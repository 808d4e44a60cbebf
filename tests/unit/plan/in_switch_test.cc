// In-switch reduction over equal and unequal spines.
#include <string>

#include "common/plan/bound.h"
#include "common/plan/chooser.h"
#include "common/plan/forest_json.h"
#include "common/plan/topology_builder.h"
#include "common/plan/topology_json.h"
#include "tests/unit/plan/plan_file.h"
#include "tests/unit/plan/plan_support.h"

namespace phub::plan {
namespace {

// Racks with links to and from each of several aggregating spines.
Topology Spines(std::uint32_t racks, const std::vector<std::int64_t>& to_spines,
                const std::vector<std::int64_t>& from_spines, std::int64_t unit) {
  TopologyParts parts;
  parts.name = "spines";
  parts.unit_capacity = unit;
  for (std::uint32_t i = 0; i < racks; ++i) parts.nodes.push_back({"r" + std::to_string(i)});
  for (std::uint32_t spine = 0; spine < to_spines.size(); ++spine) {
    parts.nodes.push_back({"s" + std::to_string(spine), NodeKind::kAggregator});
    for (std::uint32_t i = 0; i < racks; ++i)
      for (const bool up : {true, false})
        parts.links.push_back({NodeIndex{up ? i : racks + spine}, NodeIndex{up ? racks + spine : i},
                               up ? to_spines[spine] : from_spines[spine], 500});
  }
  return *Topology::Create(parts);
}

Topology Spines(std::uint32_t racks, const std::vector<std::int64_t>& capacities,
                std::int64_t unit) {
  return Spines(racks, capacities, capacities, unit);
}

// The busiest link's time by the plan file, as a multiple of the bound for plans that sum in
// switches.
double OfBound(const Topology& topology) {
  const Forest forest = Planned("in-switch", topology);
  Verified(topology, forest);
  const double time =
      BusiestTime(PlanFile(ForestToJson(topology, forest)), TopologyToJson(topology));
  const double members = static_cast<double>(topology.members().size());
  return time * members / BoundOf(topology)->narrowest.chunk_times.ToDouble();
}

TEST(InSwitch, UsesAllSpines) {
  EXPECT_NEAR(OfBound(Spines(4, {1, 1, 1, 1, 1, 1, 1, 1}, 8)), 1, 1e-9);
  EXPECT_NEAR(OfBound(Spines(2, {1, 1, 1, 1}, 4)), 1, 1e-9);
  EXPECT_NEAR(OfBound(Spines(3, {1, 1, 1, 1, 1}, 5)), 1, 1e-9);
}

TEST(InSwitch, UsesUnequalSpinesByTheirBandwidth) {
  EXPECT_LT(OfBound(Spines(4, {1, 2}, 3)), 1.02);
  EXPECT_LT(OfBound(Spines(5, {3, 1, 1}, 5)), 1.02);
}

TEST(InSwitch, UsesSpinesWhoseBandwidthsUpAndDownDiffer) {
  EXPECT_LT(OfBound(Spines(4, {1, 2}, {2, 1}, 3)), 1.02);
  EXPECT_LT(OfBound(Spines(3, {2, 2}, {1, 1}, 4)), 1.02);
  EXPECT_LT(OfBound(Spines(2, {1, 2}, {2, 1}, 3)), 1.02);
  EXPECT_LT(OfBound(Spines(6, {1, 2, 3}, {3, 2, 1}, 6)), 1.1);
  EXPECT_LT(OfBound(Spines(8, {1, 2, 3, 4}, {4, 3, 2, 1}, 10)), 1.1);
  EXPECT_LT(OfBound(Spines(16, {1, 2, 2}, {2, 1, 2}, 5)), 1.05);
}

TEST(InSwitch, TakesNoMoreTreesThanItNeeds) {
  for (const char* spec :
       {"switch:16,aggregate", "racks:4x8@4,aggregate", "fattree:4x4,aggregate"}) {
    const Topology topology = Named(spec);
    EXPECT_EQ(Planned("in-switch", topology).trees.size(), topology.members().size()) << spec;
  }
}

// 64 MiB at 12.5 GB/s take 5.37 ms. One spine for each rack took 21.9 ms.
TEST(InSwitch, FourRacksWithEightSpinesTakeTheTimeOfOneUnitLink) {
  const Topology topology = Spines(4, {1, 1, 1, 1, 1, 1, 1, 1}, 8);
  const absl::StatusOr<Choice> choice = Choose(topology, {.simulation = {.size_bytes = 64 << 20},
                                                          .planner = {.starts = 4},
                                                          .flow_work_max = std::uint64_t{1} << 22});
  ASSERT_TRUE(choice.ok()) << choice.status();
  const Candidate& best = choice->candidates[*choice->best];
  EXPECT_EQ(best.planner, "in-switch");
  EXPECT_LT(best.seconds, 1.05 * 64 * 1048576 / 12.5e9);
  EXPECT_GE(best.of_bound, 1 - 1e-9);
}

}  // namespace
}  // namespace phub::plan
