// The times that the compiler of groups reports, confirmed by another simulator: it reads the plan
// files of a phase, runs all groups at once, and shares no code with the product's simulator.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "common/plan/forest_json.h"
#include "common/plan/groups/compiler.h"
#include "tests/unit/plan/plan_support.h"
#include "tests/unit/plan/slow_simulator.h"

namespace phub::plan {
namespace {

constexpr std::int64_t kGroupBytes = 1 << 20;
constexpr std::uint32_t kGroupPieces = 2;

// Runs plan files of groups of equal size at once. Returns when each of them is complete.
std::vector<double> RunTogether(const Topology& topology, const std::vector<std::string>& files) {
  std::vector<Forest> forests;
  std::int64_t unit = 1;
  for (const std::string& file : files) {
    auto forest = ParseForestJson(topology, file, PlanScope::kGroupsToo);
    EXPECT_TRUE(forest.ok()) << forest.status();
    Verified(topology, *forest);
    unit = std::lcm(unit, forest->share_unit);
    forests.push_back(*std::move(forest));
  }
  Forest all;
  all.share_unit = unit * static_cast<std::int64_t>(files.size());
  std::vector<std::size_t> group_of;  // by tree
  for (std::size_t group = 0; group < forests.size(); ++group) {
    const auto first_path = static_cast<std::uint32_t>(all.paths.size());
    for (const Path& path : forests[group].paths) all.paths.push_back(path);
    for (Tree tree : forests[group].trees) {
      tree.share *= unit / forests[group].share_unit;
      for (auto* edges : {&tree.reduce, &tree.gather})
        for (Edge& edge : *edges) edge.path = PathIndex{edge.path.value + first_path};
      all.trees.push_back(std::move(tree));
      group_of.push_back(group);
    }
  }
  SlowSimulator simulator(topology, all,
                          {.size_bytes = kGroupBytes * static_cast<std::int64_t>(files.size()),
                           .pieces = kGroupPieces});
  simulator.Run();
  std::vector<double> seconds(files.size(), 0);
  for (const auto& [tree, arrived] : simulator.last_arrivals())
    seconds[group_of[tree]] = std::max(seconds[group_of[tree]], arrived);
  return seconds;
}

struct CompiledRun {
  Topology topology;
  CompiledGroups compiled;

  std::string FileOf(std::uint32_t group) const {
    return ForestToJson(topology, compiled.groups[group].forest);
  }
};

CompiledRun CompiledOn(std::string_view spec, const Parallelism& degrees) {
  Topology topology = Named(spec);
  const auto groups = ParallelGroups(topology, degrees, kGroupBytes);
  EXPECT_TRUE(groups.ok()) << groups.status();
  auto compiled = CompileGroups(topology, *groups, {.pieces = kGroupPieces});
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  return {std::move(topology), *std::move(compiled)};
}

// Returns the number of groups with members under several leaves. Without conflicts, groups take as
// long together as alone.
std::size_t ExpectTimesConfirmed(const CompiledRun& run, bool has_conflicts = false) {
  constexpr double kTolerance = 1e-5;  // the compiler rounds shares and times
  std::size_t crossing = 0;
  for (const CompiledPhase& phase : run.compiled.phases) {
    double seconds = 0;
    for (std::uint32_t turn = 0; turn < phase.turns; ++turn) {
      std::vector<std::uint32_t> groups;
      std::vector<std::string> files;
      for (const std::uint32_t group : phase.groups) {
        if (run.compiled.groups[group].turn != turn) continue;
        groups.push_back(group);
        files.push_back(run.FileOf(group));
      }
      const std::vector<double> together = RunTogether(run.topology, files);
      for (std::size_t i = 0; i < groups.size(); ++i) {
        const CompiledGroup& group = run.compiled.groups[groups[i]];
        EXPECT_NEAR(together[i], group.seconds_together, kTolerance * together[i]) << groups[i];
        const double alone = RunTogether(run.topology, {files[i]}).front();
        EXPECT_NEAR(alone, group.seconds_alone, kTolerance * alone) << groups[i];
        if (!has_conflicts) {
          EXPECT_NEAR(together[i], alone, kTolerance * alone) << groups[i];
        }
      }
      seconds += *std::max_element(together.begin(), together.end());
    }
    EXPECT_NEAR(seconds, phase.seconds, kTolerance * seconds);
    EXPECT_EQ(phase.conflicts > 0, has_conflicts && phase.crossing > 0);
    crossing += phase.crossing;
  }
  return crossing;
}

TEST(GroupsSimulation, ConfirmsTheTimesOfEveryPhase) {
  EXPECT_EQ(ExpectTimesConfirmed(CompiledOn("fattree:4x4,aggregate", {4, 1, 4})), 4u);
  EXPECT_EQ(ExpectTimesConfirmed(CompiledOn("fattree:4x4,aggregate", {2, 4, 2})), 12u);
  EXPECT_EQ(ExpectTimesConfirmed(CompiledOn("fattree:8x4,aggregate", {4, 1, 8})), 4u);
  // Four groups over three spines: they share cables.
  EXPECT_EQ(ExpectTimesConfirmed(CompiledOn("fattree:4x4,spines=3,aggregate", {4, 1, 4}), true),
            4u);
}

TEST(GroupsSimulation, ConfirmsTheTurnsOnFredsNetwork) {
  ExpectTimesConfirmed(CompiledOn("fred:8,3", {2, 2, 2}));
}

// A group whose plan is moved to the spine of another group: the plan is valid, but both groups
// take nearly twice as long as reported, and the other two groups take as long as before.
TEST(GroupsSimulation, DetectsAConflict) {
  const CompiledRun run = CompiledOn("fattree:4x4,aggregate", {4, 1, 4});
  const CompiledPhase& phase = run.compiled.phases.back();
  ASSERT_EQ(phase.phase, Phase::kData);
  ASSERT_EQ(phase.conflicts, 0);
  std::vector<std::string> files;
  for (const std::uint32_t group : phase.groups) files.push_back(run.FileOf(group));
  const auto spine = [&](std::size_t group) {
    const auto& spines = run.compiled.groups[phase.groups[group]].spines;
    EXPECT_EQ(spines.size(), 1u);
    return "\"" + run.topology.node(spines.front().spine).name + "\"";
  };
  const std::string from = spine(1), to = spine(0);
  ASSERT_NE(from, to);
  for (std::size_t at = 0; (at = files[1].find(from, at)) != std::string::npos;)
    files[1].replace(at, from.size(), to);
  const std::vector<double> seconds = RunTogether(run.topology, files);
  for (std::size_t i = 0; i < files.size(); ++i) {
    const double reported = run.compiled.groups[phase.groups[i]].seconds_together;
    if (i < 2) {
      EXPECT_GT(seconds[i], 1.5 * reported) << i;
    } else {
      EXPECT_NEAR(seconds[i], reported, 1e-5 * reported) << i;
    }
  }
}

}  // namespace
}  // namespace phub::plan
