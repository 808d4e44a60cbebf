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
  absl::StatusOr<Choice> choice = Choose(
      topology,
      {.simulation = {.size_bytes = size}, .planner = {.starts = 16}, .pieces_max = pieces_max});
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

TEST(Chooser, PricesWhoDoesNotApplyWithTheReason) {
  const Choice choice = Chosen(Named("ring:6"), 1 << 20);
  EXPECT_EQ(choice.candidates.size(), Planners().size());
  EXPECT_EQ(std::string(Find(choice, "halving-doubling").status.message()),
            "the number of members, 6, is not a power of two");
}

}  // namespace
}  // namespace phub::plan
