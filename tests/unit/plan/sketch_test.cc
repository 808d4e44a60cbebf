// Plans that follow sketches: TACCL's and phub's own.
#include <gmock/gmock.h>

#include <map>
#include <set>
#include <string>

#include "common/plan/chooser.h"
#include "common/plan/sketches/sketch_toml.h"
#include "tests/unit/plan/taccl_files.h"

namespace phub::plan {
namespace {

using ::testing::HasSubstr;

struct Crossing {
  std::uint32_t home, from, to, step;
  bool reduces;
};

// Transfers between different groups of `size` ranks, by the trees alone.
std::vector<Crossing> CrossingsOf(const Topology& topology, const Forest& forest,
                                  std::uint32_t size) {
  std::vector<Crossing> crossings;
  for (const Tree& tree : forest.trees)
    for (const bool reduces : {true, false})
      for (const Edge& edge : reduces ? tree.reduce : tree.gather) {
        const std::uint32_t from = topology.RankOf(edge.from), to = topology.RankOf(edge.to);
        if (from / size != to / size)
          crossings.push_back({topology.RankOf(tree.home), from, to, edge.step, reduces});
      }
  return crossings;
}

absl::StatusOr<Forest> PlannedUnder(const Topology& topology, const SketchRules& rules,
                                    std::string_view planner = "greedy") {
  PlannerOptions options;
  options.starts = 8;
  options.rules = &rules;
  return MakePlan(*FindPlanner(planner), topology, options);
}

// A valid plan that follows the sketch.
Forest Following(const ExpandedSketch& sketch) {
  absl::StatusOr<Forest> forest = PlannedUnder(sketch.topology, sketch.rules);
  EXPECT_TRUE(forest.ok()) << forest.status();
  Verified(sketch.topology, *forest);
  const absl::Status status = CheckRules(sketch.topology, *forest, sketch.rules);
  EXPECT_TRUE(status.ok()) << status;
  return *std::move(forest);
}

TEST(Sketch, OnlyRelaysSendToOtherNodes) {
  for (const int nodes : {2, 4}) {
    const std::string symmetry = fmt::format("[[8, {}]]", 8 * nodes);
    const ExpandedSketch sketch =
        *Expanded(SketchText(nodes, kDirectLinks, R"({"0": [1]})", symmetry), Ndv2Profile());
    const Forest forest = Following(sketch);
    EXPECT_EQ(forest.trees.size(), 8u * static_cast<unsigned>(nodes));
    const std::vector<Crossing> crossings = CrossingsOf(sketch.topology, forest, 8);
    EXPECT_FALSE(crossings.empty());
    for (const Crossing& crossing : crossings) {
      EXPECT_EQ(crossing.from % 8, 0u);
      EXPECT_EQ(crossing.to % 8, 1u);
      EXPECT_NE(crossing.home / 8, (crossing.reduces ? crossing.from : crossing.to) / 8);
    }
  }
}

TEST(Sketch, SendersSendTheirOwnDataFirstAndOnlyThoseOfTheirGpus) {
  const ExpandedSketch sketch =
      *Expanded(SketchText(2, SwitchOf16("uc-min"),
                           kPairsOfDgx2 + kSendersOfDgx2 + R"(, "enforce_ordering": true)",
                           "[[2, 16], [16, 32]]", 2),
                Dgx2Profile());
  const Forest forest = Following(sketch);
  EXPECT_EQ(forest.trees.size(), 64u);                            // two for each GPU
  std::map<std::uint32_t, std::uint32_t> own_last, others_first;  // gather steps, by sender
  for (const Crossing& crossing : CrossingsOf(sketch.topology, forest, 16)) {
    EXPECT_EQ(crossing.from % 2, 1u);
    EXPECT_EQ(crossing.to % 16 + 1, crossing.from % 16);
    EXPECT_EQ(crossing.home % 16 / 2, crossing.from % 16 / 2);
    if (crossing.reduces) continue;
    if (crossing.home == crossing.from) {
      own_last[crossing.from] = std::max(own_last[crossing.from], crossing.step);
    } else if (!others_first.contains(crossing.from) ||
               crossing.step < others_first[crossing.from]) {
      others_first[crossing.from] = crossing.step;
    }
  }
  ASSERT_EQ(others_first.size(), 16u);
  for (const auto& [sender, step] : others_first) EXPECT_LT(own_last.at(sender), step);
}

TEST(Sketch, AllOtherPublishedShapesCanBePlanned) {
  const std::string all = R"("fully-connected")", same = R"("direct-map")";
  for (const auto& [text, profile] :
       {std::pair{SketchText(1, kDirectLinks, "", "[]", 6), Ndv2Profile()},
        std::pair{SketchText(2, kDirectLinks, all, "[[8, 16]]"), Ndv2SmallProfile()},
        std::pair{SketchText(4, kDirectLinks, all, "[[8, 32]]"), Ndv2SmallProfile()},
        std::pair{SketchText(2, kDirectLinks, same, "[[8, 16]]"), Ndv2SmallProfile()},
        std::pair{SketchText(1, SwitchOf16("uc-min"), "", "[[2, 16]]", 2), Dgx2Profile()},
        std::pair{SketchText(2, SwitchOf16("uc-max"), same, "[[2, 16], [16, 32]]"),
                  Dgx2SmallProfile()}})
    Following(*Expanded(text, profile));
}

// What a plan made without the sketch does wrong is named.
TEST(Sketch, APlanThatBreaksTheSketchIsRefused) {
  const auto sketch_of = [](const std::string& connections, const std::string& symmetry,
                            int chunks) {
    return *Expanded(SketchText(2, SwitchOf16("uc-min"), connections, symmetry, chunks),
                     Dgx2Profile());
  };
  const ExpandedSketch sketch = sketch_of(kPairsOfDgx2, "[]", 1);
  const Topology& topology = sketch.topology;
  const auto why = [&](const SketchRules& rules) {
    return CheckRules(topology, Following(sketch), rules).ToString();
  };
  SketchRules rules = sketch.rules;
  rules.pairs->erase({1, 0});
  EXPECT_THAT(why(rules), HasSubstr("the sketch forbids transfers between these members of "
                                    "different groups"));
  EXPECT_THAT(why(sketch_of(kPairsOfDgx2 + kSendersOfDgx2, "[]", 1).rules),
              HasSubstr("the sketch does not let this sender send the data of this home to other "
                        "groups"));
  EXPECT_THAT(why(sketch_of(kPairsOfDgx2, "[]", 2).rules),
              HasSubstr("g0 is the home of 1 tree(s); the sketch demands 2 for each member"));
  rules = sketch.rules;
  rules.rotations = {{1, 2}};
  EXPECT_THAT(why(rules), HasSubstr("the sketch demands symmetry: rotated by 1 in blocks of 2"));
}

TEST(Sketch, TheOrderOfASenderIsChecked) {
  const ExpandedSketch sketch = *Expanded(
      SketchText(2, SwitchOf16("uc-min"),
                 kPairsOfDgx2 + kSendersOfDgx2 + R"(, "enforce_ordering": true)", "[]", 1),
      Dgx2Profile());
  Forest forest = Following(sketch);
  const NodeIndex sender{1}, receiver{16}, neighbour{0};
  const auto edge_of = [&](NodeIndex home) -> Edge& {
    for (Tree& tree : forest.trees)
      if (tree.home == home)
        for (Edge& edge : tree.gather)
          if (edge.from == sender && edge.to == receiver) return edge;
    ADD_FAILURE() << "the data of g" << home.value << " do not cross";
    return forest.trees[0].gather[0];
  };
  std::swap(edge_of(sender).step, edge_of(neighbour).step);
  EXPECT_THAT(CheckRules(sketch.topology, forest, sketch.rules).ToString(),
              HasSubstr("(home g1), gather edge g1->g16 at step "));
  EXPECT_THAT(CheckRules(sketch.topology, forest, sketch.rules).ToString(),
              HasSubstr("the sketch demands that the sender's own result comes first"));
}

TEST(Sketch, PlannersThatDoNotFollowItRefuse) {
  const ExpandedSketch sketch = *Expanded(SketchText(1, kDirectLinks, "", "[]"), Ndv2Profile());
  for (const Planner& planner : Planners()) {
    const absl::StatusOr<Forest> forest = PlannedUnder(sketch.topology, sketch.rules, planner.name);
    if (planner.name == "greedy") {
      EXPECT_TRUE(forest.ok()) << forest.status();
    } else {
      EXPECT_THAT(Why(forest), HasSubstr("does not follow the rules of a sketch")) << planner.name;
    }
  }
}

TEST(Sketch, ASymmetryThatIsNotOneIsRefused) {
  const auto why = [](const std::string& connections, const std::string& symmetry) {
    return Why(Expanded(SketchText(2, SwitchOf16("uc-min"), connections, symmetry), Dgx2Profile()));
  };
  EXPECT_EQ(why(R"({"1": [0]})", "[[16, 32], [2, 16]]"),
            "symmetry_offsets: the rotation by 2 in blocks of 16 ranks changes links, bandwidths, "
            "latencies or the rules of the sketch");
  // Rank 1 moves to itself if both rotations follow each other.
  EXPECT_THAT(why(R"("direct-map")", "[[1, 2], [1, 4]]"),
              HasSubstr("symmetries must move every member to another one"));
}

TEST(Sketch, SymmetryOfManyNodesIsAccepted) {
  const auto sketch =
      Expanded(SketchText(16, kDirectLinks, R"("fully-connected")", "[[8, 128]]"), Ndv2Profile());
  ASSERT_TRUE(sketch.ok()) << sketch.status();
  EXPECT_EQ(sketch->topology.nodes().size(), 128u + 2 * 128);
}

// GPUs of one node that exchange data.
std::size_t PairsWithin(const ExpandedSketch& sketch, const Forest& forest) {
  std::set<std::pair<std::uint32_t, std::uint32_t>> pairs;
  for (const Tree& tree : forest.trees)
    for (const Edge& edge : tree.gather)
      if (edge.from.value / 16 == edge.to.value / 16) pairs.emplace(edge.from.value, edge.to.value);
  EXPECT_FALSE(sketch.topology.nodes().empty());
  return pairs.size();
}

TEST(Sketch, PreferencesDecideAmongPlansOfTheSameTime) {
  const auto pairs_with = [](const std::string& strategy) {
    const ExpandedSketch sketch =
        *Expanded(SketchText(2, SwitchOf16(strategy), R"("direct-map")", "[[2, 16], [16, 32]]"),
                  Dgx2SmallProfile());
    PlannerOptions options;
    options.starts = 64;
    options.size_bytes = 32 << 20;
    options.rules = &sketch.rules;
    return PairsWithin(sketch, *MakePlan(*FindPlanner("greedy"), sketch.topology, options));
  };
  EXPECT_LT(pairs_with("uc-min"), pairs_with("uc-max"));
}

constexpr std::string_view kGateways = R"(
# Only host 0 of each rack talks across.
group_size = 4
[between_groups]
senders = [0]
receivers = [0]
)";

TEST(SketchToml, OnlyGatewaysOfRacksTalkAcross) {
  const Topology racks = Named("racks:3x4@4");
  const absl::StatusOr<TopologySketch> sketch = ParseSketchToml(kGateways, racks);
  ASSERT_TRUE(sketch.ok()) << sketch.status();
  const absl::StatusOr<Forest> forest = PlannedUnder(sketch->topology, sketch->rules);
  ASSERT_TRUE(forest.ok()) << forest.status();
  Verified(racks, *forest);
  const std::vector<Crossing> crossings = CrossingsOf(racks, *forest, 4);
  EXPECT_FALSE(crossings.empty());
  for (const Crossing& crossing : crossings) {
    EXPECT_EQ(crossing.from % 4, 0u);
    EXPECT_EQ(crossing.to % 4, 0u);
  }
  // Without the sketch, other hosts talk across, too.
  const Forest free = Planned("greedy", racks, {.starts = 4});
  EXPECT_THAT(CheckRules(racks, free, sketch->rules).ToString(),
              HasSubstr("the sketch forbids transfers between these members"));
}

// A gateway must send 24 results across, at least, and 24 that it receives into its rack. It leaves
// the rest of its rack to others.
TEST(SketchToml, GatewaysDoNotSendWhatOthersCan) {
  const Topology racks = Named("racks:4x8@4");
  const absl::StatusOr<TopologySketch> sketch =
      ParseSketchToml("group_size = 8\n[between_groups]\nsenders = [0]\nreceivers = [0]\n", racks);
  ASSERT_TRUE(sketch.ok()) << sketch.status();
  PlannerOptions options;
  options.starts = 8;
  options.size_bytes = 64 << 20;
  options.rules = &sketch->rules;
  const absl::StatusOr<Forest> forest = MakePlan(*FindPlanner("greedy"), sketch->topology, options);
  ASSERT_TRUE(forest.ok()) << forest.status();
  EXPECT_LE(Verified(racks, *forest).gather_time.ToDouble() * 32, 1.25 * 48);
}

TEST(SketchToml, NoPlanUsesForbiddenLinks) {
  const Topology torus = Named("torus:4x4");
  const absl::StatusOr<TopologySketch> sketch =
      ParseSketchToml("[[forbid]]\nfrom = \"m0\"\nto = [\"m1\", \"m4\"]\n", torus);
  ASSERT_TRUE(sketch.ok()) << sketch.status();
  EXPECT_EQ(sketch->topology.links().size() + 2, torus.links().size());
  for (const Planner& planner : Planners()) {
    if (!planner.applies(sketch->topology).ok()) continue;
    const Forest forest = Planned(planner.name, sketch->topology, {.starts = 4});
    for (const Path& path : forest.paths)
      for (const LinkIndex link : path) {
        const std::string name = sketch->topology.LinkName(link);
        EXPECT_TRUE(name != "m0->m1" && name != "m0->m4") << planner.name;
      }
  }
}

// On a ring, data for m2 must pass the other group and come back.
TEST(SketchToml, RulesThatNoPlanCanFollowAreRefused) {
  const Topology ring = Named("ring:4");
  const std::string groups = "groups = [[\"m0\", \"m2\"], [\"m1\", \"m3\"]]\n";
  const auto planned = [&](const std::string& rules) {
    const absl::StatusOr<TopologySketch> sketch =
        ParseSketchToml(groups + "[between_groups]\n" + rules, ring);
    EXPECT_TRUE(sketch.ok()) << sketch.status();
    return Why(PlannedUnder(sketch->topology, sketch->rules));
  };
  EXPECT_EQ(planned("may_return = true\n"), "accepted");
  EXPECT_EQ(planned("may_return = false\n"),
            "under the rules of the sketch, some member cannot be reached from another one");
}

TEST(SketchToml, NamesTheLineAndTheReason) {
  const Topology racks = Named("racks:2x4@2");
  const auto why = [&](std::string_view text) { return Why(ParseSketchToml(text, racks)); };
  EXPECT_EQ(why("\ngroup_size = 3\n"), "line 2: group_size must divide the number of members, 8");
  EXPECT_THAT(why("grups = []\n"), HasSubstr("line 1: unknown key 'grups' in a sketch"));
  EXPECT_EQ(why("groups = [[\"m0\"], [\"m1\", \"core\"]]\n"),
            "line 1: groups: racks:2x4@2 has no member 'core'");
  EXPECT_EQ(why("groups = [[\"m0\"],\n [\"m0\"]]\n"),
            "line 2: groups: member 'm0' is in two groups");
  EXPECT_EQ(why("groups = [[\"m0\"]]\n"), "line 1: groups: member 'm1' is in no group");
  EXPECT_EQ(why("groups = [[]]\n"),
            "line 1: groups must be a list of lists of members; a group must not be empty");
  EXPECT_EQ(why("[between_groups]\nsenders = [0]\n"),
            "line 1: between_groups needs group_size or groups");
  const std::string between = "group_size = 4\n[between_groups]\n";
  EXPECT_EQ(why(between + "senders = []\n"),
            "line 3: senders must be a list of places from 0 to 3 that is not empty");
  EXPECT_EQ(why(between + "receivers = [4]\n"),
            "line 3: receivers must be a list of places from 0 to 3 that is not empty");
  EXPECT_EQ(why(between + "senders = [0]\npairs = [[0, 1]]\n"),
            "line 4: pairs excludes senders and receivers");
  EXPECT_EQ(why(between + "senders = [0]\n[between_groups.carries]\n1 = [0]\n"),
            "line 5: carries: '1' is not the place of a sender");
  EXPECT_EQ(why(between + "senders = [0]\n[between_groups.carries]\n0 = [0, 1, 2]\n"),
            "line 4: carries: no sender may send the data of place 3");
  EXPECT_EQ(why("symmetry = [[4, 4]]\n"),
            "line 1: symmetry must be a list of at most 64 pairs [OFFSET, RANKS] with 1 <= OFFSET "
            "< RANKS");
  EXPECT_EQ(why("symmetry = [[1, 3]]\n"),
            "line 1: symmetry: the rotation by 1 in blocks of 3 ranks does not fit to 8 ranks");
  EXPECT_EQ(why("prefer = \"speed\"\n"), "line 1: prefer must be uc-min, uc-max, minmax or maxmin");
  EXPECT_EQ(why("[[forbid]]\nfrom = \"m0\"\nto = \"m1\"\n"),
            "line 1: forbid: there is no such link, or it is forbidden twice");
  EXPECT_EQ(why("[[forbid]]\nfrom = [\"leaf0\", \"leaf1\"]\nto = \"core\"\n"),
            "line 1: forbid: without these links there is no path from member 'm0' to member 'm4'");
  EXPECT_THAT(why("group_size = \n"), HasSubstr("line 1: "));
}

}  // namespace
}  // namespace phub::plan
