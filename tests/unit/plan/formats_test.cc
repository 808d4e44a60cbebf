// The JSON form of plans, and pictures.
#include <string>

#include "common/base/printable.h"
#include "common/plan/draw.h"
#include "common/plan/forest_json.h"
#include "tests/unit/plan/plan_support.h"

namespace phub::plan {
namespace {

TEST(ForestJson, ReadsBackWhatItWrites) {
  for (const char* spec : {"torus:4x4", "racks:4x4@2", "bigraph:4x4", "switch:8,aggregate"}) {
    const Topology topology = Named(spec);
    for (const Planner& planner : Planners()) {
      if (!planner.applies(topology).ok()) continue;
      const std::string text = ForestToJson(topology, Planned(planner.name, topology));
      const absl::StatusOr<Forest> again = ParseForestJson(topology, text);
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_EQ(ForestToJson(topology, *again), text);
      Verified(topology, *again);
    }
  }
}

TEST(ForestJson, NamesThePlace) {
  const Topology topology = Named("ring:3");
  const std::string good = ForestToJson(topology, Planned("ring", topology));
  const auto why = [&](std::string_view what, std::string_view with) {
    return Why(ParseForestJson(topology, Replaced(good, what, with)));
  };
  EXPECT_EQ(why("\"step\": 0", "\"step\": -1"),
            "trees[0].reduce[0]: field 'step' must be an integer from 0 to 4194303");
  EXPECT_EQ(why("\"step\": 0", "\"step\": 1e99").substr(0, 18), "trees[0].reduce[0]");
  EXPECT_EQ(why("\"path\": 0", "\"path\": 99"),
            "trees[0].reduce[0]: field 'path' must be an integer from 0 to 2");
  EXPECT_EQ(why("\"share\": \"1/3\"", "\"share\": \"4/3\""),
            "trees[0]: field 'share' must be a fraction above 0 and at most 1, such as \"1/16\"");
  EXPECT_EQ(why("\"home\": \"m0\"", "\"home\": \"m7\""),
            "trees[0]: ring:3 has no node 'm7'; the plan is probably for another topology");
  EXPECT_EQ(why("\"home\":", "\"house\":").substr(0, 32), "trees[0]: unknown field 'house' ");
  EXPECT_EQ(Why(ParseForestJson(Named("switch:3"), good)),
            "paths[0]: switch:3 has no link m1->m2; the plan is probably for another topology");
}

// A message between processes must not contain part of a character.
TEST(ForestJson, WhatItNamesIsNotCutWithinACharacter) {
  const Topology topology = Named("ring:3");
  const std::string good = ForestToJson(topology, Planned("ring", topology));
  for (std::size_t before = 55; before < 65; ++before) {
    const std::string name = std::string(before, 'x') + "\u00e9\u00e9\u00e9";
    const std::string why =
        Why(ParseForestJson(topology, Replaced(good, "\"home\":", "\"" + name + "\":")));
    EXPECT_NE(why.find("unknown field"), std::string::npos) << why;
    EXPECT_EQ(Printable(why), why);
    const std::string planner = std::string(before + 140, 'x') + "\u00e9\u00e9\u00e9";
    const auto forest = ParseForestJson(
        topology, Replaced(good, "\"planner\": \"ring\"", "\"planner\": \"" + planner + "\""));
    ASSERT_TRUE(forest.ok()) << forest.status();
    EXPECT_NE(forest->planner, "ring");
    EXPECT_EQ(Printable(forest->planner), forest->planner);
  }
}

TEST(Draw, ShowsTheLinksOfEachPlanInItsColour) {
  const Topology topology = Named("racks:2x2,aggregate");
  Forest first = Planned("in-switch", topology);
  const std::vector<NamedForest> forests = {{"one", first}, {"two<", first}};
  const std::string picture = DrawForests(topology, forests);
  for (const char* colour : {"hsl(0,70%,45%)", "hsl(138,70%,45%)"}) {
    // Four links of members and two uplinks, both directions as one line.
    std::size_t lines = 0;
    const std::string stroke = std::string("stroke=\"") + colour;
    for (std::size_t at = 0; (at = picture.find(stroke, at)) != std::string::npos; ++at) ++lines;
    EXPECT_EQ(lines, 6u) << colour;
  }
  EXPECT_NE(picture.find(">two&lt;<"), std::string::npos);
}

TEST(Draw, ShowsEveryEdgeOfTheTreesOfAHome) {
  for (const char* spec : {"torus:4x4", "racks:2x4@2", "random:9,seed=2", "switch:4,aggregate"}) {
    const Topology topology = Named(spec);
    const Forest forest = Planned("sharded-star", topology);
    const absl::StatusOr<std::string> picture = DrawForest(topology, forest, "m1");
    ASSERT_TRUE(picture.ok());
    std::size_t tips = 0;
    for (std::size_t at = 0; (at = picture->find("Z\" fill=\"hsl", at)) != std::string::npos; ++at)
      ++tips;
    EXPECT_EQ(tips, 2 * (topology.members().size() - 1));
    EXPECT_NE(picture->find("home m1"), std::string::npos);
  }
}

TEST(Draw, RefusesAHomeThatIsNone) {
  const Topology topology = Named("ring:4");
  const Forest forest = Planned("double-binary-tree", topology);
  EXPECT_FALSE(DrawForest(topology, forest, "nobody").ok());
  EXPECT_FALSE(DrawForest(topology, forest, "m1").ok() && DrawForest(topology, forest, "m2").ok());
}

}  // namespace
}  // namespace phub::plan
