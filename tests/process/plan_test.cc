// phubctl plan, the real program, without a daemon: command lines and their output.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "tests/process/process.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {
namespace {

using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

Finished Plan(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "plan");
  return RunToEnd(PHUB_TEST_PHUBCTL, arguments);
}

// Fails the test unless the command succeeds and prints nothing on standard error.
std::string Output(const std::vector<std::string>& arguments) {
  const Finished finished = Plan(arguments);
  EXPECT_EQ(finished.exit, Exit::WithCode(0)) << finished.error;
  EXPECT_EQ(finished.error, "");
  return finished.output;
}

// Fails the test unless the command exits with `code` and prints nothing on standard output.
std::string Error(int code, const std::vector<std::string>& arguments) {
  const Finished finished = Plan(arguments);
  EXPECT_EQ(finished.exit, Exit::WithCode(code)) << finished.error;
  EXPECT_EQ(finished.output, "");
  return finished.error;
}

std::string Contents(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

class PhubctlPlan : public ::testing::Test {
 protected:
  std::string In(const std::string& name) const { return folder_.path() + "/" + name; }
  // Writes a plan to a file. Returns its path.
  std::string Made(const std::string& planner, const std::string& topology) const {
    const std::string file = In(planner + ".json");
    EXPECT_EQ(Output({"make", "-p", planner, "-t", topology, "-o", file}), "");
    return file;
  }
  TemporaryFolder folder_;
};

TEST_F(PhubctlPlan, HelpIsOnStandardOutputWithExamples) {
  const std::string help = Output({"--help"});
  for (const char* command : {"topology", "make", "verify", "bound", "simulate", "compare", "draw",
                              "export", "import", "Examples:"})
    EXPECT_THAT(help, HasSubstr(command));
  EXPECT_THAT(Output({"bound", "--help"}), HasSubstr("--topology TOPOLOGY REQUIRED"));
}

TEST_F(PhubctlPlan, WrongUsageIsExitCode2WithTheWayToHelp) {
  EXPECT_THAT(Error(2, {}), EndsWith("phubctl: a command is missing\nSee: phubctl plan --help\n"));
  EXPECT_EQ(Error(2, {"comprae"}),
            "phubctl: unknown command \"comprae\"; did you mean \"compare\"?\n"
            "See: phubctl plan --help\n");
  EXPECT_EQ(Error(2, {"bound", "-t", "ring:4", "--sise", "1"}),
            "phubctl: unknown option \"--sise\"; did you mean \"--size\"?\n"
            "See: phubctl plan bound --help\n");
  EXPECT_EQ(Error(2, {"bound"}),
            "phubctl: --topology is required\nSee: phubctl plan bound --help\n");
  EXPECT_THAT(Error(2, {"compare", "-t", "ring:4", "--pieces", "-1"}), HasSubstr("--pieces"));
}

TEST_F(PhubctlPlan, WhatIsNotThereIsExitCode3) {
  EXPECT_EQ(Error(3, {"verify", In("none.json"), "-t", "ring:4"}),
            "phubctl: no such file: '" + In("none.json") + "'\n");
  EXPECT_THAT(Error(3, {"make", "-p", "multitre", "-t", "ring:4"}),
              HasSubstr("did you mean \"multitree\"?"));
  EXPECT_EQ(Error(3, {"draw", Made("ring", "ring:4"), "-t", "ring:4", "--home", "m9"}),
            "phubctl: ring:4 has no node 'm9'\n");
}

TEST_F(PhubctlPlan, BadInputIsExitCode1AndNamesThePlace) {
  const auto bound_of = [&](const std::string& toml) {
    return Error(1, {"bound", "-t", folder_.Write("net.toml", toml)});
  };
  const std::string at = "phubctl: " + In("net.toml") + ": line ";
  EXPECT_THAT(bound_of("name = \"x\"\nmembres = []\n"),
              StartsWith(at + "2: unknown key 'membres'"));
  EXPECT_EQ(bound_of("members = [\"a\",\n \"a\"]\n"), at + "2: two nodes are named 'a'\n");
  const std::string link =
      "members = [\"a\", \"b\"]\n[[link]]\nfrom = \"a\"\nto = \"b\"\nbandwidth = ";
  for (const char* bandwidth : {"-1", "0", "nan", "inf", "1e30", "\"0/1\"", "\"-1GB/s\""})
    EXPECT_THAT(bound_of(link + bandwidth + "\n"), StartsWith(at)) << bandwidth;
  const std::string cut = folder_.Write("cut.json", "{\"format\": \"phub.plan.v1\",\n \"plan");
  EXPECT_THAT(Error(1, {"verify", cut, "-t", "ring:4"}), HasSubstr("cut.json: line 2, column "));
  const std::string xml = folder_.Write("bad.xml", "<algo>\n<gpu/>\n</algo>\n");
  EXPECT_THAT(Error(1, {"import", xml, "-t", "ring:4"}), HasSubstr("bad.xml: line 1: "));
  EXPECT_THAT(Error(1, {"verify", Made("ring", "ring:4"), "-t", "ring:5"}),
              HasSubstr("ring.json: paths["));
  EXPECT_THAT(Error(1, {"make", "-p", "hdrm", "-t", "ring:4"}),
              StartsWith("phubctl: hdrm cannot plan ring:4: "));
  EXPECT_THAT(Error(1, {"bound", "-t", "ring:99999999999"}),
              HasSubstr("is not a shape, such as 4x4"));
  EXPECT_THAT(Error(1, {"bound", "-t", "ring:4", "-s", "-1"}), HasSubstr("--size: '-1'"));
  EXPECT_THAT(Error(1, {"make", "-p", "ring", "-t", "ring:4", "-o", In("no/folder.json")}),
              EndsWith(": cannot write the file\n"));
}

TEST_F(PhubctlPlan, ABrokenPlanIsRefusedWithTreeEdgeAndReason) {
  std::string text = Contents(Made("ring", "ring:4"));
  const std::string edge = "\"from\": \"m2\"";
  ASSERT_NE(text.find(edge), std::string::npos) << text;
  text.replace(text.find(edge), edge.size(), "\"from\": \"m3\"");
  const std::string broken = folder_.Write("broken.json", text);
  for (const char* command : {"verify", "simulate", "draw", "export", "import"}) {
    const std::string why = Error(1, {command, broken, "-t", "ring:4"});
    EXPECT_THAT(why, StartsWith("phubctl: " + broken + ": the plan is not valid: tree "))
        << command;
    EXPECT_THAT(why, HasSubstr("edge m3->")) << command;
  }
}

TEST_F(PhubctlPlan, MakesVerifiesAndSimulates) {
  const std::string plan = Made("multitree", "torus:4x4");
  EXPECT_THAT(Output({"verify", plan, "-t", "torus:4x4"}),
              HasSubstr("valid. 16 trees by multitree, 5 + 5 steps.\n"));
  EXPECT_THAT(Output({"-o", "json", "verify", plan, "-t", "torus:4x4"}),
              HasSubstr("\"gather_steps\": 5"));
  EXPECT_THAT(Output({"simulate", plan, "-t", "torus:4x4", "-s", "1GiB", "--pieces", "8", "--trace",
                      In("trace.json")}),
              StartsWith("1 GiB in 8 piece(s): "));
  EXPECT_THAT(Contents(In("trace.json")), HasSubstr("\"traceEvents\""));
}

TEST_F(PhubctlPlan, GreedyPlansForTheGivenSize) {
  const auto made_for = [](const char* size) {
    return Output({"make", "-p", "greedy", "-t", "ring:4,latency=10us", "--size", size});
  };
  EXPECT_NE(made_for("1KB"), made_for("1GB"));
}

TEST_F(PhubctlPlan, FormatsAreNotFiles) {
  const std::string plan = Contents(Made("ring", "ring:4"));
  for (const std::vector<std::string>& to_standard_output :
       {std::vector<std::string>{"make", "-p", "ring", "-t", "ring:4"},
        {"make", "-p", "ring", "-t", "ring:4", "-o", "json"},
        {"make", "-p", "ring", "-t", "ring:4", "--output", "json"}})
    EXPECT_EQ(Output(to_standard_output), plan);
}

TEST_F(PhubctlPlan, ShowsTopologiesAndBounds) {
  EXPECT_THAT(Output({"topology", "show", "racks:2x2@4"}),
              HasSubstr("\nleaf0  core     1/2   500 ns\n"));
  // The JSON output can be read back.
  const std::string file =
      folder_.Write("racks.json", Output({"topology", "show", "racks:2x2@4", "-o", "json"}));
  EXPECT_EQ(Output({"bound", "-t", file}), Output({"bound", "-t", "racks:2x2@4"}));
  const std::string bound = Output({"bound", "-t", "torus:8x8"});
  EXPECT_THAT(bound, HasSubstr("\nall-gather                                 63/4     16"));
  EXPECT_THAT(bound, HasSubstr("\nnarrowest cut (any plan)  "));
  EXPECT_THAT(bound, HasSubstr("\npartition (only members sum)  "));
  EXPECT_THAT(bound, HasSubstr("\nany plan in which only members sum  "));
  EXPECT_THAT(bound, HasSubstr("Narrowest cut for all-gather: into {m0}\n"
                               "Narrowest cut for any plan: out of {m0}\n"
                               "Partition: 64 groups: {m0} {m1} {m2} {m3} {m4} {m5} {m6} {m7} "
                               "and 56 more\n"));
}

TEST_F(PhubctlPlan, ComparesAllPlannersInOneTable) {
  const std::string table = Output({"compare", "-t", "racks:2x4@4", "-s", "16MiB"});
  EXPECT_THAT(table, StartsWith("PLANNER             STEPS  PIECES  MOST BYTES  BUSIEST LINK"));
  for (const char* text :
       {"sharded-star", "halving-doubling", "packing", "<- best", "not a BiGraph",
        "The lower bound for any plan is ", "Reduce-scatter and all-gather, one phase after "})
    EXPECT_THAT(table, HasSubstr(text));
  EXPECT_THAT(Output({"compare", "-t", "ring:4", "-o", "json"}), HasSubstr("\"of_bound\": "));
}

TEST_F(PhubctlPlan, DrawsExportsAndImports) {
  const std::string plan = Made("hierarchical", "racks:2x4@2");
  EXPECT_THAT(Output({"draw", plan, "-t", "racks:2x4@2", "--home", "m1"}), StartsWith("<svg "));
  EXPECT_EQ(Output({"export", plan, "-t", "racks:2x4@2", "-o", In("plan.xml")}), "");
  EXPECT_EQ(Output({"import", In("plan.xml"), "-t", "racks:2x4@2", "-o", In("again.json")}), "");
  // A thread block sends its runs of chunks one after the other, which takes more steps.
  EXPECT_THAT(Output({"verify", In("again.json"), "-t", "racks:2x4@2"}),
              HasSubstr("again.json: valid. 8 trees by hierarchical, "));
  const std::string inside = In("in-switch.json");
  Made("in-switch", "switch:4,aggregate");
  EXPECT_THAT(Error(1, {"export", inside, "-t", "switch:4,aggregate"}),
              HasSubstr("MSCCL does not support aggregating switches"));
}

constexpr const char* kSketch = R"({"nnodes": 2, "intranode_sketch": {"strategy": "none"},
  "internode_sketch": {"strategy": "relay", "internode_conn": {"0": [1]}},
  "symmetry_offsets": [[8, 16]], "hyperparameters": {"input_chunkup": 1}})";
constexpr const char* kProfile = R"({"name": "NDv2_1MB", "gpus_per_node": 8, "nics_per_node": 1,
  "alpha": 0.3, "node_betas_list": [23, 46], "node_invbws_list": [23, 46],
  "remote_alpha": 2.6, "remote_beta": 105, "remote_invbw": 107})";

TEST_F(PhubctlPlan, ExpandsSketchesOfTaccl) {
  const std::string sketch = folder_.Write("sketch.json", kSketch);
  const std::string profile = folder_.Write("profile.json", kProfile);
  const std::string summary =
      Output({"sketch", sketch, "--profile", profile, "-o", In("gpus.toml")});
  EXPECT_THAT(summary, StartsWith("NDv2_1MB x 2: 16 ranks on 2 node(s), 66 links between GPUs, 2 "
                                  "of them between nodes.\n"));
  const std::string toml = Output({"sketch", sketch, "--profile", profile});
  EXPECT_EQ(toml, Contents(In("gpus.toml")));
  EXPECT_THAT(toml, StartsWith("# NDv2_1MB x 2: 16 ranks "));
  EXPECT_THAT(Output({"topology", "show", In("gpus.toml")}),
              HasSubstr("16 members, 0 switches, 66 directed links"));
  const std::string plan = Made("greedy", In("gpus.toml"));
  EXPECT_THAT(Output({"verify", plan, "-t", In("gpus.toml")}), HasSubstr("valid."));
}

TEST_F(PhubctlPlan, ErrorsInSketchesNameFileFieldAndReason) {
  const std::string sketch = folder_.Write("sketch.json", kSketch);
  const std::string profile = folder_.Write("profile.json", kProfile);
  const std::string bad = folder_.Write(
      "bad.json",
      std::string(kSketch).replace(std::string_view(kSketch).find("\"0\""), 3, "\"9\""));
  EXPECT_EQ(Error(1, {"sketch", bad, "--profile", profile}),
            "phubctl: " + bad +
                ": internode_sketch.internode_conn: there is no GPU 9; a node has 8 "
                "(gpus_per_node)\n");
  EXPECT_THAT(Error(1, {"sketch", sketch, "--profile", sketch}),
              StartsWith("phubctl: " + sketch + ": unknown field "));
  EXPECT_THAT(Error(2, {"sketch", sketch}), HasSubstr("--profile is required"));
  EXPECT_THAT(Error(3, {"sketch", sketch, "--profile", In("none.json")}),
              HasSubstr("no such file"));
  EXPECT_THAT(Error(1, {"sketch", sketch, "--profile", profile, "--node", "DGX2"}),
              HasSubstr("gpus_per_node: is 8, but a DGX2 has 16"));
  EXPECT_THAT(Error(1, {"sketch", sketch, "--profile", profile, "--time-unit", "1"}),
              HasSubstr("--time-unit: '1' is not a duration such as 1us"));
}

TEST_F(PhubctlPlan, PlansFollowSketchesOfTaccl) {
  const std::string sketch = folder_.Write("sketch.json", kSketch);
  const std::string profile = folder_.Write("profile.json", kProfile);
  const std::vector<std::string> network = {"--sketch", sketch, "--profile", profile};
  const auto with = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), network.begin(), network.end());
    return arguments;
  };
  EXPECT_EQ(Output(with({"make", "-p", "greedy", "--starts", "8", "-o", In("plan.json")})), "");
  EXPECT_THAT(Output(with({"verify", In("plan.json")})), HasSubstr("valid. 16 trees by greedy"));
  EXPECT_THAT(Error(1, with({"make", "-p", "ring"})),
              HasSubstr("ring cannot plan NDv2_1MB x 2: it does not follow the rules of a sketch"));
  // Two trees for each member instead of one.
  std::string other = kSketch;
  other.replace(other.find("chunkup\": 1"), 11, "chunkup\": 2");
  EXPECT_EQ(Error(1, {"verify", In("plan.json"), "--sketch", folder_.Write("two.json", other),
                      "--profile", profile}),
            "phubctl: " + In("plan.json") + ": the plan does not follow " + In("two.json") +
                ": g0 is the home of 1 tree(s); the sketch demands 2 for each member\n");
  EXPECT_THAT(Error(1, {"make", "--sketch", sketch}), HasSubstr("--profile is missing: "));
  EXPECT_THAT(Error(1, with({"make", "-t", "ring:4"})), HasSubstr("has its own topology"));
  EXPECT_EQ(Error(2, {"make"}),
            "phubctl: --topology or --sketch is required\nSee: phubctl plan --help\n");
}

TEST_F(PhubctlPlan, PlansFollowSketchesInToml) {
  const std::string sketch = folder_.Write(
      "gateways.toml", "group_size = 4\n[between_groups]\nsenders = [0]\nreceivers = [0]\n");
  const std::string racks = "racks:2x4@2";
  EXPECT_EQ(Output({"make", "-t", racks, "--sketch", sketch, "-p", "greedy", "--starts", "8", "-o",
                    In("plan.json")}),
            "");
  EXPECT_THAT(Output({"verify", In("plan.json"), "-t", racks, "--sketch", sketch}),
              HasSubstr("valid. "));
  const std::string free = Made("ring", racks);
  EXPECT_THAT(Output({"verify", free, "-t", racks}), HasSubstr("valid. "));
  EXPECT_THAT(Error(1, {"verify", free, "-t", racks, "--sketch", sketch}),
              HasSubstr("the sketch forbids transfers between these members of different groups"));
  EXPECT_THAT(Output({"compare", "-t", racks, "--sketch", sketch, "--starts", "8", "-s", "1MiB"}),
              HasSubstr("it does not follow the rules of a sketch"));
  EXPECT_EQ(Error(1, {"make", "-t", racks, "--sketch", folder_.Write("bad.toml", "group = 4\n")})
                .substr(0, ("phubctl: " + In("bad.toml") + ": line 1: unknown key 'group'").size()),
            "phubctl: " + In("bad.toml") + ": line 1: unknown key 'group'");
}

TEST_F(PhubctlPlan, PlansGroupsJointly) {
  const std::string racks = "fattree:4x4,aggregate";
  const std::string table =
      Output({"groups", "-t", racks, "--mp", "2", "--dp", "8", "-o", In("plans")});
  EXPECT_THAT(table, StartsWith("GROUP    PHASE   RANKS "));
  EXPECT_THAT(table, HasSubstr("\nPHASE   GROUPS  CROSSING  LOAD  BOUND  MEMBERS  CONFLICTS  "));
  EXPECT_THAT(table, HasSubstr("\ndata         2         2  1.00   0.50     1.00          0"));
  EXPECT_THAT(table, EndsWith("are in times of 64 MiB on a unit link.\n"));
  for (const char* plan : {"tensor0", "tensor7", "data0", "data1"})
    EXPECT_THAT(Output({"verify", In("plans/") + plan + ".json", "-t", racks}),
                HasSubstr("trees by groups"));
  EXPECT_THAT(Output({"draw", In("plans/data0.json"), "-t", racks}), StartsWith("<svg "));
  const std::string picture =
      Output({"draw", In("plans/data0.json"), In("plans/data1.json"), "-t", racks});
  for (const char* text : {"<svg ", "2 plans on fattree:4x4,aggregate", ">data0<", ">data1<"})
    EXPECT_THAT(picture, HasSubstr(text));
  EXPECT_THAT(Error(2, {"draw", In("plans/data0.json"), In("plans/data1.json"), "-t", racks,
                        "--home", "m0"}),
              HasSubstr("--home is only for one plan"));
  EXPECT_THAT(Error(1, {"export", In("plans/tensor0.json"), "-t", racks}),
              HasSubstr("plans of groups cannot be exported"));
  const std::string file =
      folder_.Write("groups.toml",
                    "[[group]]\nname = \"a\"\nranks = [0, 4]\n"
                    "[[group]]\nname = \"b\"\nranks = [8, 4]\nsize = \"1MiB\"\n");
  EXPECT_THAT(Error(1, {"groups", "-t", racks, "--groups", file}),
              StartsWith("phubctl: " + file + ": line 6: group 'b': rank 4 (m4) is already in"));
  folder_.Write("groups.toml", "[[group]]\nname = \"a\"\nranks = [0, 4]\n");
  EXPECT_THAT(Output({"groups", "-t", racks, "--groups", file, "-o", "json"}),
              HasSubstr("\"conflicts\": 0"));
  folder_.Write("groups.toml",
                "[[group]]\nname = \"a\"\nranks = [0, 4]\n"
                "[[group]]\nname = \"b\"\nranks = [1, 5]\nsize = \"128MiB\"\n");
  EXPECT_THAT(Output({"groups", "-t", racks, "--groups", file, "--least-load"}),
              EndsWith("data: the search found no plan with fewer than 10 pairs; 8 to 9 are not "
                       "ruled out.\n"));
  EXPECT_THAT(Error(3, {"groups", "-t", racks, "--groups", In("none.toml")}),
              HasSubstr("no such file"));
  EXPECT_THAT(Error(1, {"groups", "-t", racks, "--mp", "32"}), HasSubstr("must be from 1 to 16"));
  EXPECT_THAT(Error(2, {"groups", "-t", racks}), HasSubstr("--groups, or --mp, --pp and --dp"));
  EXPECT_EQ(Plan({"groups", "-t", racks, "--groups", file, "--mp", "2"}).exit, Exit::WithCode(2));
}

// Expect: the times that `plan groups` prints, from the plan files alone.
TEST_F(PhubctlPlan, SimulatesPlansThatExchangeAtTheSameTime) {
  const std::string racks = "fattree:4x4,aggregate";
  const auto groups = nlohmann::json::parse(
      Output({"groups", "-t", racks, "--mp", "2", "--dp", "8", "-o", "json"}));
  Output({"groups", "-t", racks, "--mp", "2", "--dp", "8", "-o", In("plans")});
  const std::string data0 = In("plans/data0.json"), data1 = In("plans/data1.json");
  const auto simulated = nlohmann::json::parse(
      Output({"simulate", data0, data1, "-t", racks, "--pieces", "64", "-o", "json"}));
  ASSERT_EQ(simulated["plans"].size(), 2u);
  for (const nlohmann::json& group : groups["groups"]) {
    for (const nlohmann::json& plan : simulated["plans"]) {
      if (plan["plan"] != In("plans/") + group["name"].get<std::string>() + ".json") continue;
      EXPECT_EQ(plan["members"], 8);
      EXPECT_EQ(plan["seconds_alone"], group["seconds_alone"]);
      EXPECT_EQ(plan["seconds_together"], group["seconds_together"]);
      const double alone = plan["seconds_alone"];
      EXPECT_NEAR(plan["seconds_together"].get<double>(), alone, 0.01 * alone);  // own spines
    }
  }
  // The same links twice take twice as long.
  const auto twice = nlohmann::json::parse(
      Output({"simulate", data0, data0, "-t", racks, "--pieces", "64", "-o", "json"}));
  const double alone = twice["plans"][0]["seconds_alone"], together = twice["seconds"];
  EXPECT_GT(together, 1.9 * alone);
  EXPECT_LT(together, 2.01 * alone);
  EXPECT_THAT(Output({"simulate", data0, data1, "-t", racks}),
              HasSubstr("\nAll 2 plans at once, 64 MiB each in 1 piece(s): "));
  EXPECT_THAT(Error(2, {"simulate", data0, data1, "-t", racks, "--lockstep"}),
              HasSubstr("--lockstep is only for one plan"));
  EXPECT_THAT(Error(1, {"simulate", data0, data1, "-t", racks, "-s", "1024TiB"}),
              HasSubstr("bytes together"));
  EXPECT_THAT(Error(3, {"simulate", data0, In("none.json"), "-t", racks}),
              HasSubstr("no such file"));
}

TEST_F(PhubctlPlan, ComputesTheMemoryOfDaemons) {
  const std::string table = Output({"memory", "-t", "switch:4", "--ranks", "4"});
  EXPECT_THAT(table, StartsWith("PLANNER"));
  EXPECT_THAT(table, HasSubstr("\nring "));
  EXPECT_THAT(table, HasSubstr("no aggregating switch"));
  const std::string plan = Made("ring", "switch:2");
  const std::string daemons = Output({"memory", plan, "-t", "switch:2", "-s", "8MiB"});
  EXPECT_THAT(daemons, HasSubstr("\nm1 "));
  // MiB read: sums 8 + 8, update 4, sending 8 + 8; written: landing 8 + 8, sums 8 + 4, update 4.
  EXPECT_THAT(daemons, ContainsRegex("m1 +8 MiB +8 MiB +36 MiB +32 MiB +4.250 "));
  EXPECT_THAT(Error(1, {"memory", plan, "-t", "switch:2", "--optimizer", "adem"}),
              HasSubstr("unknown optimizer \"adem\"; did you mean \"adam\"?"));
  EXPECT_THAT(Error(2, {"memory", plan, "-t", "switch:2", "--ranks", "0"}), HasSubstr("--ranks"));
  EXPECT_THAT(Error(1, {"memory", plan, "-t", "switch:3"}), HasSubstr("not valid"));
}

TEST_F(PhubctlPlan, ReorderingSaysWhatItGains) {
  const Finished made =
      Plan({"make", "-p", "ring", "-t", "racks:2x4@4", "--reorder", "-o", In("ring.json")});
  EXPECT_EQ(made.exit, Exit::WithCode(0));
  EXPECT_THAT(made.error, StartsWith("reordered: "));
  EXPECT_THAT(Contents(In("ring.json")), Not(HasSubstr("reordered")));
}

}  // namespace
}  // namespace phub::process
