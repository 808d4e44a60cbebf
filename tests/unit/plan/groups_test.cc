// Groups that exchange at the same time: files, placement, joint plans, and their figures. Loads
// are recounted from the plan files.
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
using ::testing::StartsWith;

constexpr std::int64_t kBytes = 1 << 20;

std::vector<Group> Parallel(const Topology& topology, const Parallelism& degrees) {
  auto groups = ParallelGroups(topology, degrees, kBytes);
  EXPECT_TRUE(groups.ok()) << groups.status();
  return *std::move(groups);
}

std::vector<Group> DataGroups(const std::vector<std::vector<std::uint32_t>>& ranks) {
  std::vector<Group> groups;
  for (const auto& list : ranks)
    groups.push_back({"g" + std::to_string(groups.size()), Phase::kData, list, kBytes});
  return groups;
}

CompiledGroups Compiled(const Topology& topology, const std::vector<Group>& groups,
                        const CompilerOptions& options = {.pieces = 4}) {
  auto compiled = CompileGroups(topology, groups, options);
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  return *std::move(compiled);
}

bool IsCable(const PlanFile::Ends& ends) {
  return ends.first.starts_with("spine") || ends.second.starts_with("spine");
}

// The loads of a phase's groups over links, from their plan files, in times of kBytes on a link of
// one unit.
struct Recount {
  double busiest_cable = 0, busiest_other = 0;
  std::int64_t pairs = 0, conflicts = 0;
};
Recount Recounted(const Topology& topology, const std::vector<Group>& groups,
                  const CompiledGroups& compiled, const CompiledPhase& phase) {
  std::map<PlanFile::Ends, double> loads;
  std::map<PlanFile::Ends, int> users;  // from a leaf to a spine
  Recount recount;
  for (const std::uint32_t i : phase.groups) {
    const Forest& forest = compiled.groups[i].forest;
    EXPECT_EQ(forest.group.size(), groups[i].ranks.size());
    for (const auto& [ends, load] : PlanFile(ForestToJson(topology, forest)).Loads()) {
      loads[ends] += load * static_cast<double>(groups[i].bytes) / static_cast<double>(kBytes);
      if (!ends.second.starts_with("spine")) continue;
      ++recount.pairs;
      if (++users[ends] == 2) ++recount.conflicts;
    }
  }
  for (const auto& [ends, load] : loads) {
    const LinkIndex link =
        *topology.FindLink(*topology.FindNode(ends.first), *topology.FindNode(ends.second));
    double& busiest = IsCable(ends) ? recount.busiest_cable : recount.busiest_other;
    busiest = std::max(busiest, load / topology.CapacityOf(link).ToDouble());
  }
  return recount;
}

// Every figure that the compiler reports is that of the plan files.
void ExpectConsistent(const Topology& topology, const std::vector<Group>& groups,
                      const CompiledGroups& compiled) {
  for (const CompiledPhase& phase : compiled.phases) {
    const Recount recount = Recounted(topology, groups, compiled, phase);
    EXPECT_NEAR(recount.busiest_cable, phase.load.ToDouble(), 1e-9);
    EXPECT_EQ(recount.pairs, phase.pairs);
    EXPECT_EQ(recount.conflicts, phase.conflicts);
    EXPECT_LE(phase.load, std::max(phase.bound, phase.members_load));
    EXPECT_GE(phase.pairs, phase.pairs_least);
  }
}

TEST(Groups, AreConsecutiveRanksThenStagesThenReplicas) {
  const Topology topology = Named("switch:12,aggregate");
  std::map<std::string, std::vector<std::uint32_t>> ranks;
  for (const Group& group : Parallel(topology, {.tensor = 2, .pipeline = 2, .data = 3}))
    ranks[group.name] = group.ranks;
  EXPECT_EQ(ranks.size(), 6u + 6u + 4u);
  EXPECT_EQ(ranks["tensor1"], (std::vector<std::uint32_t>{2, 3}));
  EXPECT_EQ(ranks["pipeline2"], (std::vector<std::uint32_t>{4, 6}));
  EXPECT_EQ(ranks["data3"], (std::vector<std::uint32_t>{3, 7, 11}));
  EXPECT_EQ(Parallel(topology, {.tensor = 1, .pipeline = 1, .data = 5}).size(), 1u);
  const auto why = [&](const Parallelism& degrees) {
    return Why(ParallelGroups(topology, degrees, kBytes));
  };
  EXPECT_EQ(why({4, 2, 2}),
            "--mp 4 x --pp 2 x --dp 2 needs 16 ranks; switch:12,aggregate has 12 members");
  EXPECT_THAT(why({1, 1, 1}), HasSubstr("there are no groups"));
  EXPECT_THAT(why({0, 2, 2}), HasSubstr("must be from 1 to 12"));
  EXPECT_THAT(why({4096, 4096, 4096}), HasSubstr("must be from 1 to 12"));
}

TEST(Groups, FileErrorsNameLineFieldAndReason) {
  const Topology topology = Named("fattree:2x3,aggregate");
  const std::string good = "[[group]]\nname = \"a\"\nphase = \"data\"\nranks = [0, 4, 2]\n";
  const auto groups = ParseGroupsToml(good, topology, kBytes);
  ASSERT_TRUE(groups.ok()) << groups.status();
  EXPECT_EQ(groups->front().ranks, (std::vector<std::uint32_t>{0, 2, 4}));
  EXPECT_EQ(groups->front().bytes, kBytes);
  const auto why = [&](std::string_view what, std::string_view with) {
    return Why(ParseGroupsToml(Replaced(good, what, with), topology, kBytes));
  };
  EXPECT_EQ(why("\"a\"", "\"../a\"").substr(0, 24), "line 2: name '../a' must");
  EXPECT_EQ(why("\"data\"", "\"urgent\""),
            "line 3: group 'a': phase must be tensor, pipeline or data, not 'urgent'");
  EXPECT_EQ(why("4,", "6,"),
            "line 4: group 'a': there is no rank 6; fattree:2x3,aggregate has ranks 0 to 5");
  EXPECT_THAT(why("4,", "-1,"), HasSubstr("there is no rank -1"));
  EXPECT_EQ(why("4,", "0,").substr(0, 62),
            "line 4: group 'a': rank 0 (m0) is already in group 'a'; groups");
  EXPECT_EQ(why("[0, 4, 2]", "[]"), "line 4: group 'a': ranks must be a list of at least two");
  EXPECT_EQ(why("[0, 4, 2]", "[3]"), "line 4: group 'a': ranks must be a list of at least two");
  EXPECT_EQ(why("[0, 4, 2]", "[0, 1.5]"), "line 4: group 'a': ranks must be integers");
  EXPECT_EQ(why("ranks = [0, 4, 2]", "members = [\"m0\", \"spine0\"]"),
            "line 4: group 'a': fattree:2x3,aggregate has no member 'spine0'");
  EXPECT_THAT(why("ranks", "rank"), StartsWith("line 4: unknown key 'rank' in [[group]]"));
  EXPECT_THAT(why("phase = \"data\"", "size = \"0\""), StartsWith("line 3: group 'a': size must"));
  EXPECT_THAT(why("phase = \"data\"", "members = [\"m0\", \"m1\"]"),
              HasSubstr("group 'a' needs ranks or members, not both"));
  EXPECT_THAT(why(good, ""), HasSubstr("the file has no [[group]]"));
  const std::string second = "[[group]]\nname = \"b\"\nranks = [5, 4]\n";
  EXPECT_EQ(
      Why(ParseGroupsToml(good + second, topology, kBytes)),
      "line 7: group 'b': rank 4 (m4) is already in group 'a'; groups of one phase (data) run "
      "at the same time and must not overlap");
  EXPECT_THAT(Why(ParseGroupsToml(good + Replaced(second, "\"b\"", "\"a\""), topology, kBytes)),
              HasSubstr("two groups have the name 'a'"));
  // Phases take turns, so their groups may overlap.
  EXPECT_TRUE(ParseGroupsToml(good + Replaced(second, "\"b\"", "\"b\"\nphase = \"tensor\""),
                              topology, kBytes)
                  .ok());
}

// Every kind of parallelism alone: the busiest cable carries the data once, without conflicts.
TEST(Groups, OfEveryPlacementCarryTheDataOnceWithoutConflicts) {
  const Topology topology = Named("fattree:8x8,aggregate");
  int crossing = 0;
  for (std::int64_t tensor = 1; tensor <= 64; tensor *= 2) {
    for (std::int64_t pipeline = 1; tensor * pipeline <= 64; pipeline *= 2) {
      const auto groups = Parallel(topology, {tensor, pipeline, 64 / tensor / pipeline});
      const CompiledGroups compiled = Compiled(topology, groups);
      ExpectConsistent(topology, groups, compiled);
      for (const CompiledPhase& phase : compiled.phases) {
        EXPECT_EQ(phase.conflicts, 0);
        EXPECT_EQ(phase.pairs, phase.pairs_least);
        EXPECT_EQ(phase.load, Rational(phase.crossing > 0 ? 1 : 0));
        crossing += phase.crossing > 0 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(crossing, 30);
}

// 2,048 groups at once: too many for backtracking.
TEST(Groups, OfALargeRegularPlacementHaveOneSpineEach) {
  const Topology topology = Named("fattree:64x64,aggregate");
  const auto network = FindLeavesAndSpines(topology);
  ASSERT_TRUE(network.ok()) << network.status();
  std::vector<SpineDemand> demands;
  for (std::uint32_t i = 0; i < 2048; ++i) demands.push_back({{i / 64, i / 64 + 32}, kBytes});
  const auto shares = DivideAmongSpines(*network, demands, Rational(kBytes));
  ASSERT_TRUE(shares.ok()) << shares.status();
  EXPECT_EQ(shares->conflicts, 0);
  EXPECT_EQ(shares->pairs, 4096);
  EXPECT_EQ(shares->pairs_least, 4096);
}

TEST(Groups, AtRandomCarryTheDataOnce) {
  const Topology topology = Named("fattree:8x8,aggregate");
  std::mt19937 random(1);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::uint32_t> ranks(64);
    for (std::uint32_t i = 0; i < 64; ++i) ranks[i] = i;
    for (std::size_t i = 64; i > 1; --i) std::swap(ranks[i - 1], ranks[random() % i]);
    std::vector<std::vector<std::uint32_t>> lists;
    while (ranks.size() >= 2) {
      const std::size_t count = std::min<std::size_t>(2 + random() % 4, ranks.size());
      lists.emplace_back(ranks.end() - static_cast<std::ptrdiff_t>(count), ranks.end());
      ranks.resize(ranks.size() - count);
      std::sort(lists.back().begin(), lists.back().end());
    }
    const auto groups = DataGroups(lists);
    for (const bool least_load : {false, true}) {
      const CompiledGroups compiled =
          Compiled(topology, groups, {.least_load = least_load, .pieces = 1});
      ExpectConsistent(topology, groups, compiled);
      const CompiledPhase& phase = compiled.phases.front();
      EXPECT_LE(phase.load, Rational(1));
      if (least_load) {
        EXPECT_EQ(phase.load, phase.bound);
      }
    }
  }
}

TEST(Groups, AreDividedIfThereAreFewSpines) {
  const Topology topology = Named("fattree:4x4,spines=3,aggregate");
  const auto groups = DataGroups({{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}});
  const CompiledGroups compiled = Compiled(topology, groups);
  ExpectConsistent(topology, groups, compiled);
  const CompiledPhase& phase = compiled.phases.front();
  EXPECT_EQ(phase.load, Fraction(4, 3));
  EXPECT_EQ(phase.bound, Fraction(4, 3));
  // Four items fill three cables at every leaf: six pieces.
  EXPECT_EQ(phase.pairs, 24);
  EXPECT_EQ(phase.pairs_least, 24);
  for (const CompiledGroup& group : compiled.groups)
    EXPECT_GT(group.seconds_together, 1.2 * group.seconds_alone);
}

// Two lines of the Fano plane always meet, so each needs a spine of its own, although only three of
// them meet in a point.
TEST(Groups, OfTheFanoPlaneNeedSevenSpines) {
  const std::vector<std::vector<std::uint32_t>> lines = {{0, 1, 2}, {0, 3, 4}, {0, 5, 6}, {1, 3, 5},
                                                         {1, 4, 6}, {2, 3, 6}, {2, 4, 5}};
  std::vector<std::uint32_t> used(7, 0);
  std::vector<std::vector<std::uint32_t>> ranks;
  for (const auto& line : lines)
    for (ranks.emplace_back(); const std::uint32_t leaf : line)
      ranks.back().push_back(3 * leaf + used[leaf]++);
  const auto groups = DataGroups(ranks);
  // The fewest pairs for each number of spines; a solver of integer programs found the same.
  const std::map<int, std::int64_t> fewest = {{3, 63}, {4, 39}, {5, 33}, {6, 30}, {7, 21}, {8, 21}};
  for (const auto& [spines, pairs] : fewest) {
    const Topology topology = Named("fattree:7x3,aggregate,spines=" + std::to_string(spines));
    const CompiledGroups compiled = Compiled(topology, groups);
    ExpectConsistent(topology, groups, compiled);
    const CompiledPhase& phase = compiled.phases.front();
    EXPECT_EQ(phase.bound, Fraction(3, spines));
    EXPECT_EQ(phase.load, Rational(1));
    EXPECT_EQ(phase.pairs, pairs) << spines;
    EXPECT_EQ(phase.conflicts == 0, spines >= 7) << spines;
    EXPECT_EQ(phase.pairs_least, pairs) << spines;
  }
}

TEST(Groups, OfDifferentSizesShareUnequalSpines) {
  // Four members with links to spines of bandwidths 1 and 2: each member is a leaf.
  TopologyParts parts;
  parts.name = "unequal";
  for (int i = 0; i < 4; ++i) parts.nodes.push_back({"r" + std::to_string(i)});
  for (std::uint32_t spine = 0; spine < 2; ++spine) {
    parts.nodes.push_back({"spine" + std::to_string(spine), NodeKind::kAggregator});
    for (std::uint32_t i = 0; i < 4; ++i)
      for (const bool up : {true, false})
        parts.links.push_back(
            {NodeIndex{up ? i : 4 + spine}, NodeIndex{up ? 4 + spine : i}, spine + 1, 500});
  }
  const Topology topology = *Topology::Create(parts);
  auto groups = DataGroups({{0, 1}, {2, 3}});
  groups[1].bytes = 2 * kBytes;
  const CompiledGroups compiled = Compiled(topology, groups);
  EXPECT_EQ(compiled.bytes, 2 * kBytes);
  const CompiledPhase& phase = compiled.phases.front();
  EXPECT_EQ(phase.members_load, Rational(0));
  EXPECT_EQ(phase.load, Fraction(1, 3));
  EXPECT_NEAR(Recounted(topology, groups, compiled, phase).busiest_cable, 2.0 / 3, 1e-9);
}

TEST(Groups, AreRefusedOnOtherNetworks) {
  const auto why = [](std::string_view spec) {
    const Topology topology = Named(spec);
    return Why(CompileGroups(topology, DataGroups({{0, 3}}), {}));
  };
  EXPECT_THAT(why("torus:4x4"), HasSubstr("members m0 and m4 are linked directly"));
  EXPECT_THAT(why("racks:2x2@4"), HasSubstr("leaf0 only forwards; it must sum"));
  EXPECT_THAT(why("bigraph:2x4,aggregate"), HasSubstr("it has no switch without members"));
  // Sizes whose greatest common divisor is 1 and bandwidths with large denominators.
  const Topology topology = Named("fattree:2x3@999999/1000,aggregate");
  auto groups = DataGroups({{0, 3}, {1, 4}});
  groups[0].bytes = (std::int64_t{1} << 49) - 1;
  groups[1].bytes = std::int64_t{1} << 49;
  EXPECT_THAT(Why(CompileGroups(topology, groups, {})), HasSubstr("round"));
}

TEST(GroupPlan, IsForMembersOfTheGroupOnly) {
  const Topology topology = Named("fattree:4x4,aggregate");
  const CompiledGroups compiled = Compiled(topology, DataGroups({{1, 6, 7, 14}}));
  const std::string text = ForestToJson(topology, compiled.groups.front().forest);
  EXPECT_THAT(text, StartsWith("{\"format\": \"phub.plan.v2\",\n"));
  EXPECT_THAT(text, HasSubstr("\"members\": [\"m1\", \"m6\", \"m7\", \"m14\"],\n"));
  const auto parsed = [&](const std::string& plan) {
    return ParseForestJson(topology, plan, PlanScope::kGroupsToo);
  };
  const auto again = parsed(text);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(ForestToJson(topology, *again), text);
  Verified(topology, *again);

  // Daemons read plans without this scope.
  EXPECT_EQ(Why(ParseForestJson(topology, text)),
            "members: the plan is for a group of 4 of the 16 members; daemons run only plans for "
            "all members");
  EXPECT_THAT(Why(parsed(Replaced(text, "plan.v2", "plan.v1"))), StartsWith("members: "));
  EXPECT_THAT(Why(parsed(Replaced(text, "plan.v2", "plan.v3"))), StartsWith("format: "));
  EXPECT_THAT(Why(parsed(Replaced(text, "\"m1\", \"m6\", \"m7\", ", ""))),
              HasSubstr("the group must have from 2 to 16 members"));

  const auto verdict = [&](const std::string& plan) {
    const auto forest = parsed(plan);
    return forest.ok() ? Why(Verify(topology, *forest)) : Why(forest);
  };
  EXPECT_EQ(verdict(Replaced(text, "\"m6\", \"m7\"", "\"m7\", \"m6\"")),
            "the group lists m6 twice or not in the order of ranks");
  EXPECT_THAT(verdict(Replaced(text, "\"m7\", \"m14\"]", "\"m7\", \"leaf0\"]")),
              HasSubstr("is not a member of the topology"));
  EXPECT_THAT(verdict(Replaced(text, "\"m1\", \"m6\", ", "\"m6\", ")),
              HasSubstr("m1 is not in the plan's group"));
  EXPECT_THAT(verdict(Replaced(text, "\"m7\", \"m14\"]", "\"m7\", \"m14\", \"m15\"]")),
              HasSubstr("the contribution of m15 never reaches the home"));
}

}  // namespace
}  // namespace phub::plan
