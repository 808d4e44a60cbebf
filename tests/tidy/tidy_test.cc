// Checks the tree against the rules of rules.h, and each rule on text that violates it.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/tidy/rules.h"

namespace phub::tidy {
namespace {

Findings CheckAll(const SourceFile& file) {
  Findings all = CheckIncludes(file);
  for (Findings more : {CheckForm(file), CheckDeterminism(file)})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::vector<std::string> RulesBroken(const std::string& path, const std::string& text) {
  std::vector<std::string> rules;
  for (const Finding& finding : CheckAll({path, text})) rules.push_back(finding.rule);
  std::sort(rules.begin(), rules.end());
  rules.erase(std::unique(rules.begin(), rules.end()), rules.end());
  return rules;
}

using Rules = std::vector<std::string>;

// --- the tree ---

TEST(Tidy, TheTreeKeepsItsRules) {
  const std::vector<SourceFile> files = ReadTree();
  const auto has = [&](const char* path) {
    return std::any_of(files.begin(), files.end(),
                       [&](const SourceFile& file) { return file.path == path; });
  };
  ASSERT_TRUE(has("common/base/ids.h") && has("tests/tidy/tidy_test.cc")) << files.size();
  for (const SourceFile& file : files) {
    for (const Finding& finding : CheckAll(file))
      ADD_FAILURE() << file.path << ":" << finding.line << ": " << finding.rule << ": "
                    << finding.text;
  }
}

TEST(Tidy, ClassesHaveFewMethods) {
  const std::vector<ClassSize> sizes = CountMethods(ReadTree());
  ASSERT_GT(sizes.size(), 100u);
  for (const ClassSize& size : sizes)
    EXPECT_LE(size.methods, kMethodsMax) << size.name << ": a piece is missing, make it";
}

TEST(Tidy, MessagesAreIncluded) {
  for (const std::string& finding : CheckMessagesAreIncluded(ReadTree())) ADD_FAILURE() << finding;
}

// --- the rules ---

TEST(TidyIncludes, MessagesAreFoundThroughOtherFilesAndImports) {
  const std::vector<SourceFile> files = {
      {"proto/phub/v1/a.proto", "message Apple {\n}\nenum Ant {\n}\n"},
      {"proto/phub/v1/b.proto", "import \"phub/v1/a.proto\";\nmessage Bear { int32 v1 = 1; }\n"},
      {"server/has_b.h", "#include \"phub/v1/b.grpc.pb.h\"\n"},
      {"server/good.cc", "#include \"server/has_b.h\"\nv1::Apple a; v1::Bear b; v1::Ant c;\n"},
      {"server/other.cc", "my_v1::Apple a; v2::Bear b; // v1::Ant\n"},
      {"server/bad.cc", "#include \"phub/v1/a.pb.h\"\nvoid F(v1::Apple, v1::Bear, v1::Bear);\n"}};
  EXPECT_EQ(CheckMessagesAreIncluded(files),
            std::vector<std::string>{
                "server/bad.cc names v1::Bear, but does not include phub/v1/b.pb.h"});
}

TEST(TidyIncludes, LayersPointDownwards) {
  const auto broken = [](const std::string& path, const std::string& target) {
    return RulesBroken(path, "#include \"" + target + "\"\n") == Rules{"layers"};
  };
  EXPECT_TRUE(broken("common/base/a.cc", "common/wire/b.h"));
  EXPECT_TRUE(broken("common/wire/a.cc", "common/simd/b.h"));
  EXPECT_TRUE(broken("common/simd/a.cc", "common/transport/b.h"));
  EXPECT_TRUE(broken("common/plan/a.cc", "common/wire/b.h"));
  EXPECT_TRUE(broken("common/checkpoint/a.cc", "common/wire/b.h"));
  EXPECT_TRUE(broken("common/aggregation/a.cc", "common/wire/b.h"));
  EXPECT_TRUE(broken("aggregator/a.cc", "server/b.h"));
  EXPECT_TRUE(broken("server/a.cc", "aggregator/b.h"));
  EXPECT_TRUE(broken("common/http/a.cc", "server/b.h"));
  EXPECT_TRUE(broken("common/transport/tcp/a.cc", "common/checkpoint/b.h"));
  EXPECT_TRUE(broken("common/transport/tcp/a.cc", "server/b.h"));
  EXPECT_TRUE(broken("server/control/a.cc", "common/checkpoint/b.h"));
  EXPECT_TRUE(broken("server/a.cc", "client/b.h"));
  EXPECT_TRUE(broken("server/control/a.cc", "tests/b.h"));
  EXPECT_TRUE(broken("client/session/a.cc", "server/core/commands.h"));
  EXPECT_TRUE(broken("client/cli/a.cc", "server/core/commands.h"));
  EXPECT_TRUE(broken("client/push/a.cc", "client/examples/digits/model.h"));
  EXPECT_TRUE(broken("client/examples/a.cc", "common/base/clock.h"));

  EXPECT_FALSE(broken("common/wire/a.cc", "common/base/ids.h"));
  EXPECT_FALSE(broken("common/checkpoint/a.cc", "common/base/ids.h"));
  EXPECT_FALSE(broken("common/transport/tcp/a.cc", "common/wire/message.h"));
  EXPECT_FALSE(broken("server/a.cc", "server/control/b.h"));
  EXPECT_FALSE(broken("server/a.cc", "common/transport/transport.h"));
  EXPECT_FALSE(broken("client/push/a.cc", "client/session/b.h"));
  EXPECT_FALSE(broken("client/push/a.cc", "common/wire/b.h"));
  EXPECT_FALSE(broken("client/session/a.cc", "common/checkpoint/b.h"));
  EXPECT_FALSE(broken("client/cli/a.cc", "common/checkpoint/b.h"));
  EXPECT_FALSE(broken("client/examples/digits/a.cc", "client/examples/digits/b.h"));
  EXPECT_FALSE(broken("tests/sim/a.cc", "server/core/core_loop.h"));
}

TEST(TidyIncludes, SpacingDoesNotHideAnInclude) {
  EXPECT_EQ(RulesBroken("server/a.cc", "int x;\n  #  include   \"client/b.h\"\n"), Rules{"layers"});
  EXPECT_EQ(CheckIncludes({"server/a.cc", "int x;\n#include \"client/b.h\"\n"}).at(0).line, 2u);
}

TEST(TidyIncludes, StagesDoNotKnowEachOther) {
  EXPECT_EQ(RulesBroken("server/core/ingest/a.cc", "#include \"server/core/reply/b.h\"\n"),
            Rules{"stages"});
  EXPECT_EQ(RulesBroken("server/core/optimize/a.cc", "#include \"server/core/aggregate/b.h\"\n"),
            Rules{"stages"});
  EXPECT_EQ(RulesBroken("server/core/ingest/a.cc", "#include \"server/core/ingest/b.h\"\n"),
            Rules{});
  EXPECT_EQ(RulesBroken("server/core/core_loop.cc", "#include \"server/core/reply/b.h\"\n"),
            Rules{});
  EXPECT_EQ(RulesBroken("server/core/rounds/a.cc", "#include \"server/core/loop/b.h\"\n"), Rules{});
  EXPECT_EQ(RulesBroken("server/core/loop/a.cc", "#include \"server/core/reply/b.h\"\n"), Rules{});
  EXPECT_EQ(RulesBroken("server/core/loop/a.cc", "#include \"server/core/rounds/b.h\"\n"),
            Rules{"stages"});
  EXPECT_EQ(RulesBroken("server/core/reply/a.cc", "#include \"server/core/loop/b.h\"\n"),
            Rules{"stages"});
}

TEST(TidyIncludes, RoomsOfControlLieOneAboveTheOther) {
  const auto broken = [](const char* path, const std::string& target) {
    return RulesBroken(path, "#include \"server/control/" + target + "\"\n") == Rules{"rooms"};
  };
  EXPECT_TRUE(broken("server/control/jobs/a.cc", "racks/b.h"));
  EXPECT_TRUE(broken("server/control/racks/a.cc", "rpc/b.h"));
  EXPECT_TRUE(broken("server/control/jobs/a.cc", "control.h"));
  EXPECT_TRUE(broken("server/control/racks/a.cc", "parts.h"));
  EXPECT_TRUE(broken("server/control/context.cc", "jobs/b.h"));
  EXPECT_TRUE(broken("server/control/cellar/a.cc", "context.h"));
  EXPECT_FALSE(broken("server/control/racks/a.cc", "jobs/b.h"));
  EXPECT_FALSE(broken("server/control/jobs/a.cc", "jobs/b.h"));
  EXPECT_FALSE(broken("server/control/jobs/a.cc", "control_options.h"));
  EXPECT_FALSE(broken("server/control/control.cc", "racks/b.h"));
  EXPECT_FALSE(broken("server/control/rpc/a.cc", "control.h"));
  EXPECT_FALSE(broken("server/daemon.cc", "racks/b.h"));
}

TEST(TidyIncludes, OnlyTheDaemonKnowsItsTransports) {
  const auto broken = [](const char* path) {
    return RulesBroken(path, "#include \"server/transports/daemon_lanes.h\"\n") ==
           Rules{"transports"};
  };
  EXPECT_TRUE(broken("server/control/rpc/a.cc"));
  EXPECT_TRUE(broken("server/core/a.cc"));
  EXPECT_FALSE(broken("server/daemon.cc"));
  EXPECT_FALSE(broken("server/transports/tcp/a.cc"));
}

TEST(TidyForm, MethodsOfAClassAreCountedOverFiles) {
  const std::vector<ClassSize> sizes = CountMethods(
      {{"server/a.cc", "\nvoid A::B(\n    int c) const {\n  D::E(1);\n}\nA::A() : x(1) {}\n"},
       {"server/b.cc", "\n// void A::F() {\nint A::G::H() { return 1; }\nvoid A::C() {\n}\n"},
       {"tests/c.cc", "\nvoid A::I() {\n}\n"}});
  ASSERT_EQ(sizes.size(), 2u);
  EXPECT_EQ(sizes[0].name, "server: A");
  EXPECT_EQ(sizes[0].methods, 3u);
  EXPECT_EQ(sizes[1].name, "server: A::G");
  EXPECT_EQ(sizes[1].methods, 1u);
}

TEST(TidyIncludes, ControlPlaneLibrariesStayInTheControlPlane) {
  for (const std::string target :
       {"<grpcpp/grpcpp.h>", "<grpc/grpc.h>", "<google/protobuf/message.h>",
        "\"proto/phub/v1/admin.pb.h\"", "\"phub/v1/session.grpc.pb.h\""}) {
    const std::string text = "#include " + target + "\n";
    for (const char* path : {"server/daemon.cc", "server/core/ingest/a.cc", "common/wire/a.cc",
                             "client/push/a.cc", "client/include_me.cc"}) {
      const Rules rules = RulesBroken(path, text);
      EXPECT_NE(std::find(rules.begin(), rules.end(), "control"), rules.end()) << path << text;
    }
    for (const char* path :
         {"server/control/a.cc", "client/session/a.cc", "client/cli/a.cc", "tests/process/a.cc"}) {
      const Rules rules = RulesBroken(path, text);
      EXPECT_EQ(std::find(rules.begin(), rules.end(), "control"), rules.end()) << path << text;
    }
  }
}

TEST(TidyIncludes, MachineHeadersStayOut) {
  EXPECT_EQ(RulesBroken("common/transport/tcp/a.cc", "#include <infiniband/verbs.h>\n"),
            Rules{"machine"});
  EXPECT_EQ(RulesBroken("server/a.cc", "#include <rdma/rdma_cma.h>\n"), Rules{"machine"});
  EXPECT_EQ(RulesBroken("common/transport/verbs/a.cc", "#include <infiniband/verbs.h>\n"), Rules{});
  for (const char* header : {"immintrin.h", "xmmintrin.h", "arm_neon.h", "arm_sve.h"}) {
    const std::string text = std::string("#include <") + header + ">\n";
    EXPECT_EQ(RulesBroken("common/simd/a.cc", text), Rules{"machine"}) << header;
    EXPECT_EQ(RulesBroken("tests/unit/a.cc", text), Rules{"machine"}) << header;
  }
}

TEST(TidyIncludes, PublicHeadersStandAlone) {
  const auto broken = [](const std::string& include) {
    return RulesBroken("client/include/phub/a.h", "#pragma once\n#include " + include + "\n") ==
           Rules{"public"};
  };
  EXPECT_TRUE(broken("<absl/status/status.h>"));
  EXPECT_TRUE(broken("<fmt/core.h>"));
  EXPECT_TRUE(broken("<sys/socket.h>"));
  EXPECT_FALSE(broken("<vector>"));
  EXPECT_FALSE(broken("<string_view>"));
  EXPECT_FALSE(broken("\"phub/status.h\""));
}

TEST(TidyForm, SizesAreLimited) {
  std::string text;
  for (std::size_t i = 0; i < kLinesMax; ++i) text += "int x;\n";
  EXPECT_EQ(RulesBroken("server/a.cc", text), Rules{});
  EXPECT_EQ(RulesBroken("server/a.cc", text + "\n"), Rules{"lines"});
  EXPECT_EQ(RulesBroken("deploy/quickstart", text + "\n"), Rules{"lines"});
  EXPECT_EQ(RulesBroken("server/a.md", text + "\n"), Rules{});
  const std::string line(kColumnsMax - 3, '/');
  EXPECT_EQ(RulesBroken("server/a.cc", line + "\u00e9\u00e9\u00e9\n"), Rules{});
  EXPECT_EQ(RulesBroken("server/a.cc", line + "1234\n"), Rules{"columns"});
  EXPECT_EQ(RulesBroken("tests/run", line + "1234\n"), Rules{"columns"});
  EXPECT_EQ(RulesBroken("server/CMakeLists.txt", line + "1234\n"), Rules{});
}

TEST(TidyForm, FunctionsAreLimited) {
  const auto function = [](std::size_t lines) {
    std::string text = "namespace a {\nclass B;\nint c();\n\nint Long(\n    int argument) {\n";
    for (std::size_t i = 0; i < lines - 3; ++i) text += "  Call();\n";
    return text + "}\n}  // namespace a\n";
  };
  EXPECT_EQ(RulesBroken("server/a.cc", function(kFunctionLinesMax)), Rules{});
  EXPECT_EQ(RulesBroken("server/a.cc", function(kFunctionLinesMax + 1)), Rules{"function"});
  EXPECT_EQ(CheckForm({"server/a.cc", function(kFunctionLinesMax + 1)}).at(0).line, 5u);
  EXPECT_EQ(RulesBroken("tests/a_test.cc", function(kFunctionLinesMax + 1)), Rules{});
  // Expect: a declaration of several lines is no function.
  const std::string declared = "int c(int first,\n      int second);\n";
  EXPECT_EQ(RulesBroken("server/a.cc", declared + std::string(kFunctionLinesMax, '\n') + "}\n"),
            Rules{});
  std::string type = "class B {\n";
  for (std::size_t i = 0; i < kFunctionLinesMax; ++i) type += "  int member;\n";
  EXPECT_EQ(RulesBroken("server/a.cc", type + "};\n"), Rules{});
}

TEST(TidyForm, UnfinishedAndDeadCodeIsFound) {
  EXPECT_EQ(RulesBroken("server/a.cc", std::string("// TO") + "DO: more\n"), Rules{"unfinished"});
  EXPECT_EQ(RulesBroken("README.md", std::string("FIX") + "ME\n"), Rules{"unfinished"});
  EXPECT_EQ(RulesBroken("deploy/a", std::string("# XX") + "X\n"), Rules{"unfinished"});
  EXPECT_EQ(RulesBroken("deploy/a", "mktemp /tmp/a." + std::string(6, 'X') + "\n"), Rules{});
  EXPECT_EQ(RulesBroken("tests/a.cc", "TEST_F(A, DISABLED_B) {}\n"), Rules{"unfinished"});
  EXPECT_EQ(RulesBroken("server/a.cc", "#if 0\n#endif\n"), Rules{"dead"});
  EXPECT_EQ(RulesBroken("server/a.cc", "\tint x;\n"), Rules{"tabs"});
}

TEST(TidyForm, HeadersSayOnce) {
  EXPECT_EQ(RulesBroken("server/a.h", "int x;\n"), Rules{"once"});
  EXPECT_EQ(RulesBroken("server/a.h", "// #pragma once\nint x;\n"), Rules{"once"});
  EXPECT_EQ(RulesBroken("server/a.h", "// a\n#pragma once\nint x;\n"), Rules{});
  EXPECT_EQ(RulesBroken("common/simd/a-inl.h", "int x;\n"), Rules{});
}

TEST(TidyDeterminism, DistributionsDifferByLibrary) {
  EXPECT_EQ(RulesBroken("tests/sim/a.cc", "std::uniform_int_distribution<int> d;\n"),
            Rules{"distribution"});
  EXPECT_EQ(RulesBroken("common/a.cc", "std::normal_distribution d(0, 1);\n"),
            Rules{"distribution"});
  EXPECT_EQ(RulesBroken("common/a.cc", "// no std::normal_distribution here\n"), Rules{});
}

TEST(TidyDeterminism, UnorderedContainersHaveNoOrder) {
  const std::string declared = "std::unordered_map<std::string, std::vector<int>> jobs_;\n";
  EXPECT_EQ(RulesBroken("server/core/ingest/a.h", "#pragma once\n" + declared), Rules{"unordered"});
  EXPECT_EQ(RulesBroken("server/core/core_loop.h", "#pragma once\n" + declared),
            Rules{"unordered"});
  EXPECT_EQ(RulesBroken("server/control/a.cc", declared + "jobs_.find(name);\n"), Rules{});
  EXPECT_EQ(RulesBroken("server/control/a.cc", declared + "for (auto& [k, v] : jobs_) f(v);\n"),
            Rules{"unordered"});
  EXPECT_EQ(RulesBroken("common/a.cc", "absl::flat_hash_set<int> s;\nauto i = s.begin();\n"),
            Rules{"unordered"});
  EXPECT_EQ(RulesBroken("server/control/a.cc", "std::map<int, int> m;\nfor (auto& x : m) f(x);\n"),
            Rules{});
}

TEST(TidyDeterminism, NothingThrows) {
  EXPECT_EQ(RulesBroken("server/a.cc", "void f() { throw 1; }\n"), Rules{"throw"});
  EXPECT_EQ(RulesBroken("server/a.cc", "// never throw\nconst char* a = \"throw \\\" throw\";\n"),
            Rules{});
  EXPECT_EQ(RulesBroken("server/a.cc", "int a = 1'000; void f() { throw 1; } int b = 2'000;\n"),
            Rules{"throw"});
}

TEST(TidyText, CommentsAndLiteralsAreBlanked) {
  EXPECT_EQ(CodeOnly("a /* b\nc */ d // e\nf"), "a     \n     d     \nf");
  EXPECT_EQ(CodeOnly("x = R\"(a \" b)\" + y;"), "x =            + y;");
  EXPECT_EQ(CodeOnly("c = '\"'; d"), "c =    ; d");
}

}  // namespace
}  // namespace phub::tidy
