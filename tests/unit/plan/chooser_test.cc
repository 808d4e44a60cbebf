#include "common/plan/chooser.h"

#include "tests/unit/plan/plan_support.h"

namespace phub::plan {
namespace {

const Candidate& Find(const Choice& choice, std::string_view planner) {
  for (const Candidate& candidate : choice.candidates)
    if (candidate.planner == planner) return candidate;
  ADD_FAILURE() << planner;
  return choice.candidates[0];
}

// With a lower limit on pieces than the default, since finer cuts take seconds and do not change
// the best plan here.
Choice Chosen(const Topology& topology, std::int64_t size, std::uint32_t pieces_max = 16) {
  absl::StatusOr<Choice> choice = Choose(topology, {.simulation = {.size_bytes = size},
                                                    .planner = {.starts = 16},
                                                    .pieces_max = pieces_max,
                                                    .flow_work_max = std::uint64_t{1} << 22});
  EXPECT_TRUE(choice.ok()) << choice.status();
  return *std::move(choice);
}

TEST(Chooser, SeesThatHdrmLosesWhenItsLinksAreShared) {
  const Choice shared = Chosen(Named("bigraph:8x8"), 64 << 20);
  EXPECT_LT(Find(shared, "halving-doubling").seconds, Find(shared, "hdrm").seconds);
  const Choice even = Chosen(Named("bigraph:4x8"), 64 << 10);
  EXPECT_LT(Find(even, "hdrm").seconds, Find(even, "halving-doubling").seconds);
}

TEST(Chooser, TakesAStarForTinyChunksAndTreesForLargeOnes) {
  const Topology racks = Named("racks:4x4@8");
  const Choice tiny = Chosen(racks, 256);
  EXPECT_EQ(tiny.candidates[*tiny.best].planner, "sharded-star");
  const Choice large = Chosen(racks, 64 << 20);
  EXPECT_GT(Find(large, "sharded-star").seconds, 3 * large.candidates[*large.best].seconds);
}

TEST(Chooser, SeesWhetherHierarchyPays) {
  const Choice narrow = Chosen(Named("racks:4x8@4"), 64 << 20);
  EXPECT_LT(2 * Find(narrow, "hierarchical").seconds, Find(narrow, "sharded-star").seconds);
  const Choice wide = Chosen(Named("racks:4x8@1"), 64 << 10);
  EXPECT_LT(Find(wide, "sharded-star").seconds, Find(wide, "hierarchical").seconds);
}

TEST(Chooser, UsesSwitchesThatAggregate) {
  const Choice choice = Chosen(Named("switch:16,aggregate"), 64 << 20, 256);
  EXPECT_EQ(choice.candidates[*choice.best].planner, "in-switch");
  const Candidate& best = choice.candidates[*choice.best];
  EXPECT_LT(best.seconds, 0.6 * choice.bound_seconds);  // 16 of 30 chunks
  EXPECT_DOUBLE_EQ(best.of_bound, best.seconds / choice.in_switch_bound_seconds);
}

std::size_t TransfersOf(const Candidate& candidate) {
  return EdgeCount(candidate.forest) * candidate.pieces;
}

TEST(Chooser, TunesPiecesOfPlansWithManyTransfers) {
  const Choice choice = Chosen(Named("racks:4x8@4"), 100 << 20, 64);
  const Candidate& best = choice.candidates[*choice.best];
  EXPECT_TRUE(best.is_simulated_as_flows);
  EXPECT_LT(best.of_bound, 1.002);
  const Candidate& halving = Find(choice, "halving-doubling");
  EXPECT_TRUE(halving.is_simulated_as_flows);
  EXPECT_LT(halving.of_bound, 1.002);
}

TEST(Chooser, StaysWithinItsLimitOfWork) {
  const Topology racks = Named("racks:4x8@4");
  ChooserOptions options{.simulation = {.size_bytes = 64 << 20}, .planner = {.starts = 4}};
  options.flow_work_max = 2'000'000;
  const absl::StatusOr<Choice> choice = Choose(racks, options);
  ASSERT_TRUE(choice.ok()) << choice.status();
  for (const Candidate& candidate : choice->candidates) {
    if (!candidate.status.ok()) continue;
    if (candidate.is_simulated_as_flows) {
      EXPECT_LE(TransfersOf(candidate), options.flow_work_max) << candidate.planner;
    }
    EXPECT_GE(candidate.seconds, candidate.busiest_link_seconds * (1 - 1e-9)) << candidate.planner;
  }
  EXPECT_TRUE(choice->candidates[*choice->best].is_simulated_as_flows);
  options.flow_work_max = 10;  // less than one simulation
  const absl::StatusOr<Choice> lockstep = Choose(racks, options);
  ASSERT_TRUE(lockstep.ok()) << lockstep.status();
  for (const Candidate& candidate : lockstep->candidates)
    EXPECT_FALSE(candidate.is_simulated_as_flows) << candidate.planner;
}

// At every size, no fixed number of pieces is clearly faster than the chosen one.
TEST(Chooser, FindsTheBestNumberOfPieces) {
  for (const std::int64_t size :
       {std::int64_t{1000}, std::int64_t{1} << 20, std::int64_t{1} << 26}) {
    const Topology torus = Named("torus:4x4");
    const Choice choice = Chosen(torus, size, 64);
    for (const Candidate& candidate : choice.candidates) {
      if (!candidate.status.ok()) continue;
      for (const std::uint32_t pieces : {1u, 2u, 8u, 16u, 64u}) {
        const auto fixed =
            Simulate(torus, candidate.forest, {.size_bytes = size, .pieces = pieces});
        ASSERT_TRUE(fixed.ok()) << fixed.status();
        EXPECT_LT(candidate.seconds, 1.05 * fixed->seconds())
            << candidate.planner << " " << size << " bytes, " << pieces << " pieces";
      }
    }
  }
}

TEST(Chooser, PricesWhoDoesNotApplyWithTheReason) {
  const Choice choice = Chosen(Named("ring:6"), 1 << 20);
  EXPECT_EQ(choice.candidates.size(), Planners().size());
  EXPECT_EQ(std::string(Find(choice, "halving-doubling").status.message()),
            "the number of members, 6, is not a power of two");
}

}  // namespace
}  // namespace phub::plan
