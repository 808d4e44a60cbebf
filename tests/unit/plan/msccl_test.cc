// MSCCL XML: written and read back, and programs in the styles of other tools.
#include "common/plan/msccl.h"

#include <array>
#include <map>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "tests/unit/plan/plan_support.h"

namespace phub::plan {
namespace {

// A short form of a program, one line of XML per element. A step has a type, source and target and,
// if they are not 1 and none, the number of chunks and the block and step that it waits for.
struct Place {
  char buffer;
  int offset;
};
struct Step {
  const char* type;
  Place source, target;
  int count = 1;
  int wait_block = -1, wait_step = -1;
};
struct Block {
  int send = -1, receive = -1;
  std::vector<Step> steps;
  int channel = 0;
};
struct Program {
  const char* collective;
  bool in_place;
  int chunks;
  std::array<int, 3> buffers;  // chunks of i, o, s
  std::vector<std::vector<Block>> gpus = {};
  bool copies_own = false;  // before the first step, as TACCL's programs do

  std::string Xml() const {
    std::string xml = fmt::format(
        "<algo name=\"test\" proto=\"Simple\" nchannels=\"4\" nchunksperloop=\"{}\" ngpus=\"{}\" "
        "coll=\"{}\" inplace=\"{}\" outofplace=\"{}\" minBytes=\"0\" maxBytes=\"0\">\n",
        chunks, gpus.size(), collective, int{in_place}, int{!in_place});
    for (std::size_t gpu = 0; gpu < gpus.size(); ++gpu) {
      xml += fmt::format("<gpu id=\"{}\" i_chunks=\"{}\" o_chunks=\"{}\" s_chunks=\"{}\">\n", gpu,
                         buffers[0], buffers[1], buffers[2]);
      if (copies_own) xml += fmt::format("<copy i_off=\"0\" o_off=\"{}\"/>\n", gpu);
      for (std::size_t block = 0; block < gpus[gpu].size(); ++block)
        AddBlock(gpus[gpu][block], block, xml);
      xml += "</gpu>\n";
    }
    return xml + "</algo>\n";
  }

 private:
  static void AddBlock(const Block& block, std::size_t id, std::string& xml) {
    xml += fmt::format("<tb id=\"{}\" send=\"{}\" recv=\"{}\" chan=\"{}\">\n", id, block.send,
                       block.receive, block.channel);
    for (std::size_t i = 0; i < block.steps.size(); ++i) {
      const Step& step = block.steps[i];
      xml += fmt::format(
          "<step s=\"{}\" type=\"{}\" srcbuf=\"{}\" srcoff=\"{}\" dstbuf=\"{}\" dstoff=\"{}\" "
          "cnt=\"{}\" depid=\"{}\" deps=\"{}\" hasdep=\"0\"/>\n",
          i, step.type, step.source.buffer, step.source.offset, step.target.buffer,
          step.target.offset, step.count, step.wait_block, step.wait_step);
    }
    xml += "</tb>\n";
  }
};

Forest Imported(const Topology& topology, const Program& program) {
  absl::StatusOr<Forest> forest = ParseMsccl(topology, program.Xml());
  EXPECT_TRUE(forest.ok()) << forest.status();
  return *std::move(forest);
}

// The shares for which each member is the home.
std::map<NodeIndex, Rational> HomeShares(const Forest& forest) {
  std::map<NodeIndex, Rational> shares;
  for (const Tree& tree : forest.trees)
    shares[tree.home] = *Add(shares[tree.home], Fraction(tree.share, forest.share_unit));
  return shares;
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
      EXPECT_EQ(HomeShares(*again), HomeShares(forest));
    }
  }
}

// MSCCL writes a step's dependency at its end: here "$" means none.
std::string Whole(std::string_view xml) {
  std::string result;
  for (const char c : xml)
    result += c == '$' ? " depid=\"-1\" deps=\"-1\" hasdep=\"0\"/>" : std::string(1, c);
  return result;
}

// A ring all-reduce over two GPUs in another tool's style: fused operations, no scratch buffer.
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

// First in pairs, then across: received chunks are sent on while they are copied; the own part is
// copied last, and every channel has its chunk.
Program HierarchicalAllGather() {
  Program program{"allgather", false, 8, {2, 8, 0}};
  for (int gpu = 0; gpu < 4; ++gpu) {
    const int near = gpu ^ 1, far = gpu ^ 2;
    std::vector<Block>& blocks = program.gpus.emplace_back();
    for (int i = 0; i < 2; ++i) {
      const int own = 2 * gpu + i, far_chunk = 2 * far + i, across = 2 * (near ^ 2) + i;
      blocks.push_back({-1,
                        near,
                        {{"r", {'i', i}, {'o', 2 * near + i}}, {"r", {'o', across}, {'o', across}}},
                        i});
      blocks.push_back(
          {near, far, {{"s", {'i', i}, {'o', own}}, {"rcs", {'i', i}, {'o', far_chunk}}}, i});
      blocks.push_back({far, -1, {{"s", {'i', i}, {'o', own}}, {"cpy", {'i', i}, {'o', own}}}, i});
    }
  }
  return program;
}

TEST(Msccl, ReadsAnAllGatherAndMirrorsIt) {
  const Topology topology = Named("switch:4");
  const Forest forest = Imported(topology, HierarchicalAllGather());
  const VerifyReport report = Verified(topology, forest);
  EXPECT_EQ(report.reduce_steps, 2u);
  EXPECT_EQ(report.gather_steps, 2u);
  for (const auto& [home, share] : HomeShares(forest)) EXPECT_EQ(share, Fraction(1, 4));
}

// Every GPU sends its part from its place in the output.
Program AllPairsAllGather(bool in_place) {
  Program program{"allgather", in_place, 3, {1, 3, 0}};
  for (int gpu = 0; gpu < 3; ++gpu) {
    std::vector<Block>& blocks = program.gpus.emplace_back();
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == gpu) continue;
      blocks.push_back({-1, peer, {{"r", {'o', peer}, {'o', peer}}}});
      blocks.push_back({peer, -1, {{"s", {'o', gpu}, {'o', gpu}}}});
    }
  }
  return program;
}

TEST(Msccl, ReadsAnAllGatherInPlace) {
  const Topology topology = Named("switch:3");
  EXPECT_EQ(Verified(topology, Imported(topology, AllPairsAllGather(true))).steps, 2u);
}

TEST(Msccl, ReadsCopiesFromInputToOutput) {
  const Topology topology = Named("switch:3");
  for (const bool in_place : {true, false}) {
    Program program = AllPairsAllGather(in_place);
    program.copies_own = true;
    EXPECT_EQ(Verified(topology, Imported(topology, program)).steps, 2u);
  }
  Program program = AllPairsAllGather(false);
  EXPECT_EQ(Why(ParseMsccl(topology, program.Xml())),
            "line 7: the step reads a chunk that was never written");
  program.copies_own = true;
  const auto why = [&](std::string_view what, std::string_view with) {
    return Why(ParseMsccl(topology, Replaced(program.Xml(), what, with)));
  };
  EXPECT_EQ(why("o_off=\"0\"", "o_off=\"9\""), "line 3: the copied chunk is outside the buffer");
  EXPECT_EQ(why("i_off=\"0\"", "i_off=\"1\""), "line 3: the copied chunk is no part of the input");
  EXPECT_EQ(why("i_off=\"0\"", ""), "line 3: attribute 'i_off' is missing");
  EXPECT_EQ(why("i_off=\"0\" o_off=\"0\"/>", "i_off=\"0\" o_off=\"0\"><step/></copy>"),
            "line 3: unexpected element <step>");
}

// Every member sends to every home's scratch buffer. The home adds in its own block, which waits
// for all receivers through empty steps, and sends the result back.
TEST(Msccl, ReadsAllPairsThroughScratchBuffers) {
  constexpr int kGpus = 4;
  Program program{"allreduce", true, 2 * kGpus, {2 * kGpus, 0, 2 * (kGpus - 1)}};
  for (int gpu = 0; gpu < kGpus; ++gpu) {
    std::vector<Block>& blocks = program.gpus.emplace_back(kGpus);
    for (int i = 1; i < kGpus; ++i)
      blocks[0].steps.push_back({"nop", {'i', -1}, {'o', -1}, 0, i, 1});
    for (int i = 1; i < kGpus; ++i)
      blocks[0].steps.push_back({"re", {'s', 2 * (i - 1)}, {'i', 2 * gpu}, 2});
    for (int i = 1; i < kGpus; ++i) {
      const int peer = (gpu + i) % kGpus;
      blocks[static_cast<std::size_t>(i)] = {
          peer,
          peer,
          {{"s", {'i', 2 * peer}, {'s', 2 * (kGpus - 1 - i)}, 2},
           {"r", {'i', 2 * gpu}, {'s', 2 * (i - 1)}, 2},
           {"s", {'i', 2 * gpu}, {'i', 2 * gpu}, 2, 0, 2 * (kGpus - 1) - 1},
           {"r", {'i', 2 * peer}, {'i', 2 * peer}, 2}}};
    }
  }
  const Topology topology = Named("switch:4");
  const Forest forest = Imported(topology, program);
  EXPECT_EQ(forest.trees.size(), 4u);
  EXPECT_EQ(Verified(topology, forest).steps, 2u);
  // Without its waits, a home sends before it has added.
  program.gpus[0][1].steps[2].wait_block = -1;
  EXPECT_NE(Why(ParseMsccl(topology, program.Xml())), "accepted");
}

// A ring over three: every partial sum is forwarded twice.
Program RingReduceScatter(bool in_place) {
  Program program{"reduce_scatter", in_place, 3, {3, 1, 1}};
  for (int gpu = 0; gpu < 3; ++gpu) {
    const int next = (gpu + 1) % 3, previous = (gpu + 2) % 3;
    const Place result = in_place ? Place{'i', gpu} : Place{'o', 0};
    program.gpus.push_back({{{next,
                              previous,
                              {{"s", {'i', previous}, {'i', previous}},
                               {"rrs", {'i', next}, {'i', next}},
                               {"rrc", {'i', gpu}, result}}}}});
  }
  return program;
}

TEST(Msccl, ReadsAReduceScatterAndMirrorsIt) {
  const Topology topology = Named("ring:3");
  for (const bool in_place : {true, false}) {
    const Forest forest = Imported(topology, RingReduceScatter(in_place));
    const VerifyReport report = Verified(topology, forest);
    EXPECT_EQ(report.reduce_steps, 2u);
    EXPECT_EQ(report.gather_steps, 2u);
    for (const auto& [home, share] : HomeShares(forest)) EXPECT_EQ(share, Fraction(1, 3));
  }
}

TEST(Msccl, RefusesAReduceScatterThatEndsElsewhere) {
  const Topology topology = Named("ring:3");
  Program program = RingReduceScatter(true);
  program.gpus[1][0].steps[2].target = {'s', 0};
  EXPECT_EQ(Why(ParseMsccl(topology, program.Xml())), "gpu 1 ends without the result of chunk 1");
  program = RingReduceScatter(true);
  program.gpus[0][0].steps[2].type = "rrcs";
  program.gpus[1][0].steps.push_back({"r", {'i', 0}, {'i', 0}});
  EXPECT_EQ(
      Why(ParseMsccl(topology, program.Xml())),
      "not a forest: gpu 0 sends the complete sum of chunk 0; in a reduce_scatter it must stay "
      "at gpu 0");
  program = RingReduceScatter(true);
  program.chunks = 4;
  EXPECT_EQ(Why(ParseMsccl(topology, program.Xml())), "nchunksperloop is not a multiple of ngpus");
}

TEST(Msccl, RefusesWhatIsNoForestWithTheReason) {
  const Topology topology = Named("ring:2");
  const auto why = [&](std::string_view what, std::string_view with) {
    return Why(ParseMsccl(topology, Replaced(Whole(kTwoGpus), what, with)));
  };
  EXPECT_EQ(why("allreduce", "alltoall").substr(0, 15), "coll=\"alltoall\"");
  EXPECT_EQ(why("type=\"s\"", "type=\"x\""), "line 4: unknown step type 'x'");
  EXPECT_EQ(why("srcoff=\"1\"", "srcoff=\"7\""),
            "line 4: the step's chunks are outside the buffer");
  EXPECT_EQ(why("type=\"s\" srcbuf=\"i\" srcoff=\"1\"", "type=\"s\" srcbuf=\"i\" srcoff=\"0\""),
            "line 11: the step adds chunk 0 to chunk 1");
  EXPECT_EQ(why("depid=\"-1\" deps=\"-1\"", "depid=\"3\" deps=\"0\""),
            "line 4: the step waits for a step that does not exist");
  EXPECT_EQ(why("depid=\"-1\" deps=\"-1\"", "depid=\"0\" deps=\"2\"").substr(0, 39),
            "line 4: gpu 0 never gets past this step");
  EXPECT_EQ(why("<algo", "<!DOCTYPE a><algo"), "line 1: document types are not allowed");
  EXPECT_EQ(why("</algo>", ""), "line 14: no element found");
  EXPECT_EQ(Why(ParseMsccl(Named("ring:3"), Whole(kTwoGpus))),
            "the program is for 2 GPUs, but ring:3 has 3 members");
}

TEST(Msccl, RefusesRecursiveDoubling) {
  Program doubling{"allreduce", true, 1, {1, 0, 1}};
  for (const int peer : {1, 0})
    doubling.gpus.push_back(
        {{peer, peer, {{"s", {'i', 0}, {'i', 0}}, {"rrc", {'i', 0}, {'i', 0}}}}});
  EXPECT_NE(Why(ParseMsccl(Named("ring:2"), doubling.Xml()))
                .find("not a forest: the sum of chunk 0 is completed at gpu"),
            std::string::npos);
}

TEST(Msccl, RefusesToWriteSwitchesThatSum) {
  const Topology topology = Named("switch:4,aggregate");
  EXPECT_NE(Why(ForestToMsccl(topology, Planned("in-switch", topology)))
                .find("does not support aggregating switches"),
            std::string::npos);
}

}  // namespace
}  // namespace phub::plan
