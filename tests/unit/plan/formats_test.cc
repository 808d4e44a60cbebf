// The JSON form of plans, MSCCL XML, pictures.
#include <string>

#include "common/plan/draw.h"
#include "common/plan/forest_json.h"
#include "common/plan/msccl.h"
#include "tests/unit/plan/plan_support.h"

namespace phub::plan {
namespace {

template <typename Value>
std::string Why(const absl::StatusOr<Value>& value) {
  return value.ok() ? "accepted" : std::string(value.status().message());
}

std::string Replaced(std::string text, std::string_view what, std::string_view with) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), with);
}

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
            "trees[0].reduce[0]: field 'step' must be a whole number in 0..4194303");
  EXPECT_EQ(why("\"step\": 0", "\"step\": 1e99").substr(0, 18), "trees[0].reduce[0]");
  EXPECT_EQ(why("\"path\": 0", "\"path\": 99"),
            "trees[0].reduce[0]: field 'path' must be a whole number in 0..2");
  EXPECT_EQ(why("\"share\": \"1/3\"", "\"share\": \"4/3\""),
            "trees[0]: 'share' must be a fraction in 0..1, such as \"1/16\"");
  EXPECT_EQ(why("\"home\": \"m0\"", "\"home\": \"m7\""),
            "trees[0]: ring:3 has no node 'm7': is the plan for another topology?");
  EXPECT_EQ(why("\"home\":", "\"house\":").substr(0, 32), "trees[0]: unknown field 'house' ");
  EXPECT_EQ(Why(ParseForestJson(Named("switch:3"), good)), "paths[0]: switch:3 has no link m1->m2");
}

TEST(Msccl, ReadsBackWhatItWrites) {
  for (const char* spec : {"torus:4x4", "racks:4x4@2", "ring:5"}) {
    const Topology topology = Named(spec);
    for (const Planner& planner : Planners()) {
      if (!planner.applies(topology).ok()) continue;
      const Forest forest = Planned(planner.name, topology);
      const absl::StatusOr<std::string> xml = ForestToMsccl(topology, forest);
      ASSERT_TRUE(xml.ok()) << xml.status();
      const absl::StatusOr<Forest> again = ParseMsccl(topology, *xml);
      ASSERT_TRUE(again.ok()) << planner.name << again.status();
      Verified(topology, *again);
      EXPECT_EQ(EdgeCount(*again) * forest.trees.size(), EdgeCount(forest) * again->trees.size());
      // Every tree has its home and its share again.
      std::map<NodeIndex, Rational> before, after;
      for (const auto& [plan, shares] : {std::pair{&forest, &before}, std::pair{&*again, &after}})
        for (const Tree& tree : plan->trees)
          (*shares)[tree.home] = *Add((*shares)[tree.home], Fraction(tree.share, plan->share_unit));
      EXPECT_EQ(before, after);
    }
  }
}

// MSCCL writes what a step waits for at its end: here "$" stands for nothing.
std::string Whole(std::string_view xml) {
  std::string result;
  for (const char c : xml)
    result += c == '$' ? " depid=\"-1\" deps=\"-1\" hasdep=\"0\"/>" : std::string(1, c);
  return result;
}

// A ring all-reduce over two GPUs, as another tool writes it: fused operations, scratch-free.
constexpr std::string_view kTwoGpus =
    R"(<algo name="ring" proto="LL" nchunksperloop="2" ngpus="2" coll="allreduce" inplace="1">
<gpu id="0" i_chunks="2" o_chunks="0" s_chunks="0">
<tb id="0" send="1" recv="1" chan="0">
<step s="0" type="s" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1"$
<step s="1" type="rrcs" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1"$
<step s="2" type="r" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1"$
</tb></gpu>
<gpu id="1" i_chunks="2" o_chunks="0" s_chunks="0">
<tb id="0" send="0" recv="0" chan="0">
<step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1"$
<step s="1" type="rrcs" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1"$
<step s="2" type="r" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1"$
</tb></gpu>
</algo>)";

TEST(Msccl, ReadsFusedOperations) {
  const Topology topology = Named("ring:2");
  const absl::StatusOr<Forest> forest = ParseMsccl(topology, Whole(kTwoGpus));
  ASSERT_TRUE(forest.ok()) << forest.status();
  ASSERT_EQ(forest->trees.size(), 2u);
  EXPECT_EQ(forest->trees[0].home, NodeIndex{0});
  EXPECT_EQ(Verified(topology, *forest).steps, 2u);
}

TEST(Msccl, ReadsAnAllGatherAndMirrorsIt) {
  constexpr std::string_view kGather =
      R"(<algo name="ag" nchunksperloop="2" ngpus="2" coll="allgather" inplace="0">
<gpu id="0" i_chunks="1" o_chunks="2" s_chunks="0">
<tb id="0" send="1" recv="1" chan="0">
<step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1"$
<step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1"$
</tb></gpu>
<gpu id="1" i_chunks="1" o_chunks="2" s_chunks="0">
<tb id="0" send="0" recv="0" chan="0">
<step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1"$
<step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1"$
</tb></gpu></algo>)";
  const Topology topology = Named("ring:2");
  const absl::StatusOr<Forest> forest = ParseMsccl(topology, Whole(kGather));
  ASSERT_TRUE(forest.ok()) << forest.status();
  EXPECT_EQ(Verified(topology, *forest).steps, 2u);
}

TEST(Msccl, RefusesWhatIsNoForestWithTheReason) {
  const Topology topology = Named("ring:2");
  const auto why = [&](std::string_view what, std::string_view with) {
    return Why(ParseMsccl(topology, Replaced(Whole(kTwoGpus), what, with)));
  };
  EXPECT_EQ(why("allreduce", "alltoall").substr(0, 15), "coll=\"alltoall\"");
  EXPECT_EQ(why("type=\"s\"", "type=\"x\""), "line 4: 'x' is not a type of step");
  EXPECT_EQ(why("srcoff=\"1\"", "srcoff=\"7\""), "line 4: its chunks are outside of the buffer");
  EXPECT_EQ(why("type=\"s\" srcbuf=\"i\" srcoff=\"1\"", "type=\"s\" srcbuf=\"i\" srcoff=\"0\""),
            "line 11: it adds chunk 0 to chunk 1");
  EXPECT_EQ(why("depid=\"-1\" deps=\"-1\"", "depid=\"3\" deps=\"0\""),
            "line 4: it waits for a step that is not there");
  EXPECT_EQ(why("depid=\"-1\" deps=\"-1\"", "depid=\"0\" deps=\"2\"").substr(0, 29),
            "line 4: gpu 0 waits here for ");
  EXPECT_EQ(why("<algo", "<!DOCTYPE a><algo"), "line 1: a document type is not read");
  EXPECT_EQ(why("</algo>", ""), "line 14: no element found");
  EXPECT_EQ(Why(ParseMsccl(Named("ring:3"), Whole(kTwoGpus))),
            "the program is for 2 GPUs, ring:3 has 3 members");
}

TEST(Msccl, RefusesRecursiveDoubling) {
  constexpr std::string_view kDoubling =
      R"(<algo name="rd" nchunksperloop="1" ngpus="2" coll="allreduce" inplace="1">
<gpu id="0" i_chunks="1" o_chunks="0" s_chunks="1">
<tb id="0" send="1" recv="1" chan="0">
<step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1"$
<step s="1" type="rrc" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1"$
</tb></gpu>
<gpu id="1" i_chunks="1" o_chunks="0" s_chunks="1">
<tb id="0" send="0" recv="0" chan="0">
<step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1"$
<step s="1" type="rrc" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1"$
</tb></gpu></algo>)";
  EXPECT_NE(Why(ParseMsccl(Named("ring:2"), Whole(kDoubling)))
                .find("not a forest: the sum of chunk 0 is completed at gpu"),
            std::string::npos);
}

TEST(Msccl, RefusesToWriteSwitchesThatSum) {
  const Topology topology = Named("switch:4,aggregate");
  EXPECT_NE(Why(ForestToMsccl(topology, Planned("in-switch", topology))).find("no switches"),
            std::string::npos);
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
