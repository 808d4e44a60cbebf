// TACCL's sketches and profiles: what they expand to, and which are refused.
#include <gmock/gmock.h>

#include <cmath>
#include <string>

#include "common/plan/topology_json.h"
#include "common/plan/topology_toml.h"
#include "tests/unit/plan/taccl_files.h"

namespace phub::plan {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Ranks, links, links between nodes, and the rounded time of a chunk between nodes.
std::string Counts(const std::string& sketch, const std::string& profile) {
  const absl::StatusOr<ExpandedSketch> expanded = Expanded(sketch, profile);
  EXPECT_TRUE(expanded.ok()) << expanded.status();
  if (!expanded.ok()) return "";
  return fmt::format("{}/{}/{}@{}", expanded->topology.members().size(), expanded->pairs,
                     expanded->pairs_across,
                     static_cast<int>(std::floor(expanded->chunk_time_across.ToDouble())));
}

// The shapes of the sketches that TACCL publishes.
TEST(Taccl, ExpandsToAsManyLinksAsTacclItself) {
  const std::string one_way = R"({"0": [1]})";
  EXPECT_EQ(Counts(SketchText(1, kDirectLinks, "", "[]", 6), Ndv2Profile()), "8/32/0@0");
  EXPECT_EQ(Counts(SketchText(2, kDirectLinks, one_way, "[[8, 16]]"), Ndv2Profile()),
            "16/66/2@107");
  EXPECT_EQ(Counts(SketchText(4, kDirectLinks, one_way, "[[8, 32]]"), Ndv2Profile()),
            "32/140/12@107");
  const std::string all = R"("fully-connected")", same = R"("direct-map")";
  EXPECT_EQ(Counts(SketchText(2, kDirectLinks, all, "[[8, 16]]"), Ndv2SmallProfile()),
            "16/192/128@916");
  EXPECT_EQ(Counts(SketchText(4, kDirectLinks, all, "[[8, 32]]"), Ndv2SmallProfile()),
            "32/896/768@916");
  EXPECT_EQ(Counts(SketchText(2, kDirectLinks, same, "[[8, 16]]"), Ndv2SmallProfile()),
            "16/80/16@342");
  EXPECT_EQ(Counts(SketchText(1, SwitchOf16("uc-min"), "", "[[2, 16]]", 2), Dgx2Profile()),
            "16/240/0@0");
  EXPECT_EQ(Counts(SketchText(2, SwitchOf16("uc-min"),
                              kPairsOfDgx2 + kSendersOfDgx2 + R"(, "enforce_ordering": true)",
                              "[[2, 16], [16, 32]]", 2),
                   Dgx2Profile()),
            "32/496/16@107");
  EXPECT_EQ(
      Counts(SketchText(2, SwitchOf16("uc-max"), same, "[[2, 16], [16, 32]]"), Dgx2SmallProfile()),
      "32/512/32@280");
}

double Rate(const Topology& topology, std::string_view from, std::string_view to) {
  const auto link = topology.FindLink(*topology.FindNode(from), *topology.FindNode(to));
  return link ? topology.BytesPerSecond(*link) : 0;
}
std::int64_t LatencyNs(const Topology& topology, std::string_view from, std::string_view to) {
  return topology.link(*topology.FindLink(*topology.FindNode(from), *topology.FindNode(to)))
      .latency_ns;
}

TEST(Taccl, LinksHaveTheCostsOfTheProfile) {
  const Topology topology =
      Expanded(SketchText(2, kDirectLinks, R"({"0": [1]})", "[]"), Ndv2Profile())->topology;
  const double chunk = 1 << 20;
  EXPECT_NEAR(chunk / Rate(topology, "g0", "g1"), 23e-6, 1e-12);
  EXPECT_NEAR(chunk / Rate(topology, "g0", "g2"), 46e-6, 1e-12);
  EXPECT_NEAR(chunk / Rate(topology, "g0", "g9"), 105e-6, 1e-12);
  EXPECT_EQ(LatencyNs(topology, "g0", "g1"), 300);
  EXPECT_EQ(LatencyNs(topology, "g8", "g1"), 2600);
  EXPECT_EQ(Rate(topology, "g0", "g5"), 0);
  EXPECT_EQ(Rate(topology, "g1", "g8"), 0);
  EXPECT_EQ(Rate(topology, "g0", "g8"), 0);
}

// The profiles for small chunks are scaled; the latency in seconds is the same.
TEST(Taccl, ScaledProfilesHaveTheirOwnTimeUnit) {
  const std::string sketch = SketchText(2, kDirectLinks, R"({"0": [1]})", "[]");
  const Topology topology = Expanded(sketch, Ndv2SmallProfile())->topology;
  EXPECT_EQ(LatencyNs(topology, "g0", "g1"), 300);
  EXPECT_EQ(LatencyNs(topology, "g0", "g9"), 2600);
  EXPECT_NEAR(1024 / Rate(topology, "g0", "g9"), 102.5e-9, 1e-15);
  const Topology given =
      Expanded(sketch, Ndv2SmallProfile(), {.chunk_bytes = 1000, .time_unit_ns = 1000})->topology;
  EXPECT_EQ(LatencyNs(given, "g0", "g1"), 30'000);
  EXPECT_NEAR(1000 / Rate(given, "g0", "g9"), 10.25e-6, 1e-12);
}

// What a GPU sends to all others passes its port.
TEST(Taccl, SwitchesLimitPorts) {
  const Topology topology =
      Expanded(SketchText(2, SwitchOf16("uc-max"), R"("direct-map")", "[]"), Dgx2Profile())
          ->topology;
  EXPECT_EQ(topology.nodes().size(), 34u);
  EXPECT_EQ(topology.links().size(), 2u * 32 + 32);
  EXPECT_NEAR((1 << 20) / Rate(topology, "g17", "n1.s0"), 8e-6, 1e-12);
  EXPECT_NEAR((1 << 20) / Rate(topology, "n1.s0", "g17"), 8e-6, 1e-12);
  EXPECT_EQ(LatencyNs(topology, "g0", "n0.s0") + LatencyNs(topology, "n0.s0", "g0"), 300);
  // 16 links share 8 NICs.
  EXPECT_NEAR((1 << 20) / Rate(topology, "g3", "g19"), 210e-6, 1e-11);
}

// A sender to three other nodes has one port, as in TACCL.
TEST(Taccl, SendersToSeveralNodesHaveOnePort) {
  const Topology topology =
      Expanded(SketchText(4, kDirectLinks, R"({"0": [1]})", "[[8, 32]]"), Ndv2Profile())->topology;
  EXPECT_NEAR((1 << 20) / Rate(topology, "g8", "g8.out"), 105e-6, 1e-12);
  EXPECT_NEAR((1 << 20) / Rate(topology, "g8.out", "g25.in"), 105e-6, 1e-12);
  EXPECT_NEAR((1 << 20) / Rate(topology, "g25.in", "g25"), 105e-6, 1e-12);
  EXPECT_EQ(Rate(topology, "g8.out", "g8"), 0);
  EXPECT_FALSE(topology.FindNode("g9.out").has_value());
  EXPECT_EQ(LatencyNs(topology, "g8.out", "g25.in"), 2600);
}

TEST(Taccl, ExpandedTopologiesReadBackFromToml) {
  for (const auto& [sketch, profile] :
       {std::pair{SketchText(2, SwitchOf16("uc-min"), kPairsOfDgx2, "[]"), Dgx2Profile()},
        std::pair{SketchText(3, kDirectLinks, R"("direct-map")", "[]"), Ndv2SmallProfile()}}) {
    const Topology topology = Expanded(sketch, profile)->topology;
    const absl::StatusOr<Topology> again = ParseTopologyToml(TopologyToToml(topology));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(TopologyToJson(*ParseTopologyToml(TopologyToToml(*again))), TopologyToJson(*again));
    ASSERT_EQ(again->links().size(), topology.links().size());
    ASSERT_EQ(again->members().size(), topology.members().size());
    for (std::uint32_t i = 0; i < topology.links().size(); ++i) {
      const Link& link = topology.link(LinkIndex{i});
      const auto same = again->FindLink(*again->FindNode(topology.node(link.from).name),
                                        *again->FindNode(topology.node(link.to).name));
      ASSERT_TRUE(same.has_value()) << topology.LinkName(LinkIndex{i});
      EXPECT_EQ(again->CapacityOf(*same), topology.CapacityOf(LinkIndex{i}));
      EXPECT_EQ(again->link(*same).latency_ns, link.latency_ns);
    }
  }
}

TEST(TopologyToml, WritesNamesThatNeedQuotes) {
  TopologyParts parts = Named("ring:3").parts();
  parts.name = "a \"quoted\"\nname";
  parts.nodes[0].name = "back\\slash";
  const absl::StatusOr<Topology> again =
      ParseTopologyToml(TopologyToToml(*Topology::Create(parts)));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->name(), parts.name);
  EXPECT_EQ(again->node(NodeIndex{0}).name, parts.nodes[0].name);
  EXPECT_TRUE(again->members_forward());
}

TEST(TacclProfile, MatricesDescribeOtherNodes) {
  const std::string profile =
      R"({"name": "mine", "gpus_per_node": 2, "alpha": 1, "links": [[0, 2], [1, 0]],
          "betas": [[0, 4], [8, 0]], "invbws": [[0, 5], [9, 0]]})";
  const Topology topology = Expanded(SketchText(1, kDirectLinks, "", "[]"), profile)->topology;
  // links[0][1]: GPU 0 receives from GPU 1 over two links of 4 us.
  EXPECT_NEAR((1 << 20) / Rate(topology, "g1", "g0"), 2e-6, 1e-12);
  EXPECT_NEAR((1 << 20) / Rate(topology, "g0", "g1"), 8e-6, 1e-12);
  const auto why = [&](std::string_view what, std::string_view with) {
    return Why(ParseTacclProfile(Replaced(profile, what, with), {}));
  };
  EXPECT_EQ(why("[1, 0]]", "[1, 1]]"), "links[1][1]: must be an integer from 0 to 0");
  EXPECT_EQ(why("[8, 0]]", "[0, 0]]"), "betas[1][0]: must be a number above 0");
  EXPECT_EQ(why("[8, 0]]", "[8]]"), "betas: it must be a list of 2 lists of 2 numbers");
  EXPECT_EQ(why("[1, 0]]", "[0, 0]]"), "betas[1][0]: must be 0: there is no link in 'links'");
  EXPECT_THAT(why("[9, 0]]", "[7, 0]]"), StartsWith("invbws[1][0]: is 7, but alpha + betas[1][0]"));
  EXPECT_EQ(Why(Expanded(SketchText(1, kDirectLinks, "", "[]"),
                         Replaced(profile, "[[0, 2], [1, 0]]", "[[0, 2], [0, 0]]"))),
            "betas[1][0]: must be 0: there is no link in 'links'");
}

TEST(TacclProfile, RefusesCostsThatAreMissingZeroOrNegative) {
  const auto why = [](std::string_view what, std::string_view with) {
    return Why(ParseTacclProfile(Replaced(Ndv2Profile(), what, with), {}));
  };
  EXPECT_EQ(why("0.3", "0"), "alpha: must be a number above 0");
  EXPECT_EQ(why("0.3", "-0.3"), "alpha: must be a number above 0");
  EXPECT_EQ(why("0.3", "null"), "alpha: must be a number above 0");
  EXPECT_EQ(why("\"alpha\": 0.3,", ""),
            "alpha: is missing; it is the latency of links within a node");
  EXPECT_EQ(why("\"node_betas_list\": [23, 46]", "\"node_betas_list\": [23]"),
            "node_betas_list: it must be a list of 2 cost(s), one for each kind of link");
  EXPECT_EQ(why("\"node_betas_list\": [23, 46]", "\"node_betas_list\": [23, 0]"),
            "node_betas_list[1]: must be a number above 0");
  EXPECT_EQ(why("\"node_betas_list\": [23, 46]", "\"node_betas_list\": [23, 1e300]"),
            "node_betas_list[1]: must be at most 1e+09");
  EXPECT_THAT(why("\"nics_per_node\": 1, ", ""), StartsWith("nics_per_node: is missing; "));
  EXPECT_THAT(why("\"nics_per_node\": 1", "\"nics_per_node\": 0"), HasSubstr("'nics_per_node'"));
  EXPECT_EQ(why("\"nics_per_node\": 1", "\"nics_per_node\": 2"),
            "nics_per_node: is 2, but an NDv2 has 1");
  EXPECT_EQ(why("_node\": 8", "_node\": 16"), "gpus_per_node: is 16, but an NDv2 has 8");
  EXPECT_EQ(why("107", "120"),
            "remote_invbw: is 120, but remote_alpha + remote_beta is 107.6; they must agree within "
            "1");
  EXPECT_EQ(why("[23, 46], \"node_inv", "[23, 40], \"node_inv"),
            "node_invbws_list[1]: is 46, but alpha + node_betas_list[1] is 40.3; they must agree "
            "within 1");
  EXPECT_THAT(why("\"alpha\"", "\"alhpa\""), StartsWith("unknown field 'alhpa' (known: "));
  EXPECT_THAT(why("NDv2_1MB", "A100"), HasSubstr("pass --node"));
}

TEST(TacclSketch, NamesTheFieldThatIsNotValid) {
  const std::string good = SketchText(2, kDirectLinks, R"({"0": [1], "2": [3]})", "[[8, 16]]");
  ASSERT_TRUE(ParseTacclSketch(good).ok());
  const auto why = [&](std::string_view what, std::string_view with) {
    return Why(ParseTacclSketch(Replaced(good, what, with)));
  };
  EXPECT_EQ(why("\"nnodes\": 2", "\"nnodes\": 0"),
            "field 'nnodes' must be an integer from 1 to 4096");
  EXPECT_EQ(why("none", "magic"),
            "intranode_sketch.strategy: 'magic' is not supported (known: none, switch, minmax, "
            "maxmin)");
  EXPECT_EQ(why("relay", "switch"),
            "internode_sketch.strategy: 'switch' is not supported (known: relay)");
  EXPECT_EQ(why("[3]", "[3, 4]"),
            "internode_sketch.internode_conn: GPU 0 sends to 1 GPU(s) and GPU 2 to 2; all senders "
            "must have the same fan-out");
  EXPECT_EQ(why("[3]", "[]"),
            "internode_sketch.internode_conn.2: must be a list of GPUs that is not empty");
  EXPECT_EQ(why("{\"0\": [1], \"2\": [3]}", "{}"),
            "internode_sketch.internode_conn: must be an object {\"SENDER\": [GPU, ...]} that is "
            "not empty");
  EXPECT_EQ(why("\"2\"", "\"02\""),
            "internode_sketch.internode_conn: '02' is not the number of a GPU");
  EXPECT_EQ(why("[3]", "[-3]"),
            "internode_sketch.internode_conn.2: must list GPUs of a node, integers from 0 to 511");
  EXPECT_EQ(why("[8, 16]", "[16, 16]"),
            "symmetry_offsets[0]: must be [OFFSET, RANKS], with 1 <= OFFSET < RANKS");
  EXPECT_EQ(why("input_chunkup\": 1", "input_chunkup\": 0"),
            "hyperparameters: field 'input_chunkup' must be an integer from 1 to 64");
  EXPECT_EQ(why("\"input_chunkup\": 1", "\"input_chunkup\": 1, \"heuristic\": 5"),
            "hyperparameters: unknown field 'heuristic' (known: input_chunkup)");
  EXPECT_EQ(why("[3]}", "[3]}, \"enforce_ordering\": true"),
            "internode_sketch.enforce_ordering: needs gpus_to_sender_rev_map");
  EXPECT_EQ(why("\"nnodes\": 2", "\"nnodes\": 1"),
            "internode_sketch: is only for more than one node; nnodes is 1");
}

TEST(TacclSketch, RefusesSwitchesThatOverlap) {
  const auto why = [](const std::string& switches, const std::string& strategies) {
    return Why(
        ParseTacclSketch(SketchText(1,
                                    R"({"strategy": "switch", "switches": )" + switches +
                                        R"(, "switch_hyperedge_strategy": )" + strategies + "}",
                                    "", "[]")));
  };
  EXPECT_EQ(why("[[0, 1], [1, 2]]", R"(["uc-min", "uc-min"])"),
            "intranode_sketch.switches[1]: GPU 1 is also in switches[0]; switches that overlap are "
            "not supported");
  EXPECT_EQ(why("[[0, 1]]", "[]"),
            "intranode_sketch.switch_hyperedge_strategy: has 0 entries for 1 switch(es)");
  EXPECT_EQ(why("[[0, 1]]", R"(["uc-all"])"),
            "intranode_sketch.switch_hyperedge_strategy: 'uc-all' is not supported (known: uc-min, "
            "uc-max)");
  EXPECT_EQ(why("[[0, 1], [2, 3]]", R"(["uc-min", "uc-max"])"),
            "intranode_sketch.switch_hyperedge_strategy: must be the same for all switches");
}

TEST(Taccl, NamesTheFieldThatContradictsTheProfile) {
  const auto why = [](const std::string& sketch, const std::string& profile) {
    return Why(Expanded(sketch, profile));
  };
  EXPECT_EQ(why(SketchText(2, kDirectLinks, R"({"8": [1]})", "[]"), Ndv2Profile()),
            "internode_sketch.internode_conn: there is no GPU 8; a node has 8 (gpus_per_node)");
  EXPECT_EQ(why(SketchText(2, kDirectLinks, R"({"0": [1]})", "[[2, 6]]"), Ndv2Profile()),
            "symmetry_offsets[0]: 16 ranks are not a multiple of 6");
  EXPECT_EQ(why(SketchText(1, SwitchOf16("uc-min"), "", "[]"), Ndv2Profile()),
            "intranode_sketch.switches[0]: there is no GPU 8; a node has 8 (gpus_per_node)");
  const auto on_switch = [](const char* gpus) {
    return fmt::format(R"({{"strategy": "switch", "switches": [{}],
                           "switch_hyperedge_strategy": ["uc-min"]}})",
                       gpus);
  };
  EXPECT_EQ(why(SketchText(1, on_switch("[0, 1, 5]"), "", "[]"), Ndv2Profile()),
            "intranode_sketch.switches[0]: the profile has no link from GPU 0 to GPU 5");
  EXPECT_EQ(why(SketchText(1, on_switch("[0, 1, 2]"), "", "[]"), Ndv2Profile()),
            "intranode_sketch.switches[0]: the links from GPU 0 to GPU 1 and from GPU 0 to GPU 2 "
            "have different costs in the profile");
  EXPECT_EQ(
      why(SketchText(2, kDirectLinks,
                     R"({"0": [1]}, "gpus_to_sender_rev_map": {"0": [0, 1, 2, 3, 4, 5, 6]})", "[]"),
          Ndv2Profile()),
      "internode_sketch.gpus_to_sender_rev_map: no GPU may send the data of GPU 7 to other "
      "nodes");
  EXPECT_EQ(
      why(SketchText(2, kDirectLinks, R"({"0": [1]}, "gpus_to_sender_rev_map": {"3": [3]})", "[]"),
          Ndv2Profile()),
      "internode_sketch.gpus_to_sender_rev_map: GPU 3 does not send to other nodes "
      "(internode_conn)");
  EXPECT_EQ(Why(Expanded(SketchText(2, kDirectLinks, R"({"0": [1]})", "[]"),
                         Replaced(Replaced(Ndv2Profile(), "105", "9e8"), "107", "900000002"),
                         {.time_unit_ns = 1'000'000})),
            "the profile: a chunk takes longer than 1 day on a link; check the time unit");
  EXPECT_EQ(why(SketchText(600, kDirectLinks, R"({"0": [1]})", "[]"), Ndv2Profile()),
            "nnodes: 600 node(s) with 8 GPU(s) each have 4800 ranks; there must be from 2 to 4096");
  EXPECT_EQ(why(SketchText(500, kDirectLinks, R"("fully-connected")", "[]"), Ndv2Profile()),
            "nnodes: the nodes have 15984000 links; at most 262144 are supported");
}

}  // namespace
}  // namespace phub::plan
