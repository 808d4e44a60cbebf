// phubd's command line and settings. Nothing in this file listens on a port.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/process/daemon_process.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(PhubdCommandLine, HelpListsSettingsAndExitCodes) {
  const Finished help = RunToEnd(kPhubd, {"--help"});
  EXPECT_EQ(help.exit, Exit::WithCode(0));
  EXPECT_THAT(help.output, HasSubstr("--liveness-timeout <100ms to 1h>  (default: 2s)"));
  EXPECT_THAT(help.output, HasSubstr("Exit codes: 0 success; 1 failure"));
  EXPECT_EQ(help.error, "");
}

TEST(PhubdCommandLine, VersionIsOneLine) {
  const Finished version = RunToEnd(kPhubd, {"--version"});
  EXPECT_EQ(version.exit, Exit::WithCode(0));
  EXPECT_THAT(version.output, ::testing::MatchesRegex("phubd [0-9]+\\.[0-9]+\\.[0-9]+ \\(.+\\)\n"));
}

TEST(PhubdCommandLine, UnknownFlagIsAUsageErrorWithASuggestion) {
  const Finished refused = RunToEnd(kPhubd, {"--lissten", "127.0.0.1:0"});
  EXPECT_EQ(refused.exit, Exit::WithCode(2));
  EXPECT_EQ(refused.error, "phubd: unknown flag \"--lissten\"; did you mean \"--listen\"?\n");
  EXPECT_EQ(refused.output, "");
}

TEST(PhubdCheckConfig, GoodFileIsOk) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("phubd.toml",
                                        "listen = \"127.0.0.1:7701\"\n"
                                        "liveness_timeout = \"500ms\"\n"
                                        "memory_max = \"2GiB\"\n");
  const Finished checked = RunToEnd(kPhubd, {"--config", path, "--check-config"});
  EXPECT_EQ(checked.exit, Exit::WithCode(0));
  EXPECT_EQ(checked.output, "ok\n");
}

struct BadFile {
  const char* name;
  const char* text;
  const char* message;  // the part after the path
};

class PhubdBadConfig : public ::testing::TestWithParam<BadFile> {};

TEST_P(PhubdBadConfig, IsRefusedWithPlaceReasonAndFix) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("phubd.toml", GetParam().text);
  for (const bool only_check : {true, false}) {
    std::vector<std::string> arguments = {"--config", path};
    if (only_check) arguments.push_back("--check-config");
    const Finished refused = RunToEnd(kPhubd, arguments);
    EXPECT_EQ(refused.exit, Exit::WithCode(2));
    EXPECT_THAT(refused.error, StartsWith("phubd: " + path));
    EXPECT_THAT(refused.error, HasSubstr(GetParam().message));
    EXPECT_EQ(refused.output, "");
  }
}

INSTANTIATE_TEST_SUITE_P(
    Files, PhubdBadConfig,
    ::testing::Values(
        BadFile{"UnknownKey", "\nmemory_maxx = \"1GiB\"\n",
                ":2:1: unknown setting \"memory_maxx\"; did you mean \"memory_max\"?"},
        BadFile{"WrongType", "listen = 7700\n",
                ":1:10: listen = 7700 is a number, but must be a string in quotes (address:port)"},
        BadFile{"OutOfRange", "liveness_timeout = \"1ms\"\n",
                ":1:20: liveness_timeout = \"1ms\" is out of range; allowed: 100ms to 1h"},
        BadFile{"NoUnit", "drain_timeout = 5\n",
                ":1:17: drain_timeout = 5 has no unit; write it in quotes, like \"5s\""},
        BadFile{"BadChoice", "wait = \"blok\"\n",
                ":1:8: wait = \"blok\" is not one of auto, poll or block; did you mean \"block\"?"},
        BadFile{"NotOfTheRack",
                "listen = \"127.0.0.1:7700\"\ndaemons = \"127.0.0.1:7701,127.0.0.1:7702\"\n",
                ":2:1: listen = \"127.0.0.1:7700\" is not in daemons"},
        BadFile{"OtherSelf", "daemons = \"127.0.0.1:7701\"\nself = \"127.0.0.1:7702\"\n",
                ":2:1: self = \"127.0.0.1:7702\" is not in daemons"},
        BadFile{"DaemonTwice", "daemons = \"node1:1,node1:1\"\n",
                ":1:11: daemons = \"node1:1,node1:1\" has the entry \"node1:1\" twice"},
        BadFile{"DaemonWithoutPort", "daemons = \"node1:1,node2\"\n",
                ":1:11: daemons = \"node1:1,node2\" has the entry \"node2\", which has no port"},
        BadFile{"SelfAlone", "self = \"127.0.0.1:7700\"\n",
                ":1:1: self = \"127.0.0.1:7700\" selects an entry of `daemons`"},
        BadFile{"NotToml", "listen 127.0.0.1\n", ":1:8: not TOML"},
        BadFile{"BeyondLoopback", "listen = \"0.0.0.0:7700\"\n",
                ":1:1: listen = \"0.0.0.0:7700\" can be reached from other hosts"}),
    [](const auto& bad) { return bad.param.name; });

TEST(PhubdCheckConfig, MissingFileIsNamed) {
  const Finished refused = RunToEnd(kPhubd, {"--config", "/nonexistent/x.toml", "--check-config"});
  EXPECT_EQ(refused.exit, Exit::WithCode(2));
  EXPECT_EQ(refused.error,
            "phubd: /nonexistent/x.toml: cannot be read: No such file or directory\n");
}

TEST(PhubdCheckConfig, UnknownVariableIsAnErrorAndAClientsIsNot) {
  const Finished refused = RunToEnd(kPhubd, {"--check-config"}, {"PHUB_LISTENN=127.0.0.1:0"});
  EXPECT_EQ(refused.exit, Exit::WithCode(2));
  EXPECT_THAT(refused.error, HasSubstr("PHUB_LISTENN: unknown PHUB_ variable; did you mean "
                                       "\"PHUB_LISTEN\"?"));
  EXPECT_EQ(RunToEnd(kPhubd, {"--check-config"}, {"PHUB_ENDPOINT=a:1"}).exit, Exit::WithCode(0));
}

TEST(PhubdDumpConfig, FedBackGivesTheSame) {
  const TemporaryFolder folder;
  const std::string file = folder.Write("phubd.toml", "memory_max = \"1GiB\"\n");
  const Finished first = RunToEnd(kPhubd, {"--config", file, "--wait=block", "--dump-config"},
                                  {"PHUB_LIVENESS_TIMEOUT=1500ms"});
  ASSERT_EQ(first.exit, Exit::WithCode(0)) << first.error;
  EXPECT_THAT(first.output, ::testing::ContainsRegex("memory_max = \"1GiB\" +# from: " + file));
  EXPECT_THAT(first.output, ::testing::ContainsRegex("wait = \"block\" +# from: --wait"));
  EXPECT_THAT(first.output,
              ::testing::ContainsRegex("liveness_timeout = \"1500ms\" +# from: PHUB_"));
  EXPECT_THAT(first.output, ::testing::ContainsRegex("pin = \"auto\" +# from: default"));
  const std::string dumped = folder.Write("dumped.toml", first.output);
  const Finished second = RunToEnd(kPhubd, {"--config", dumped, "--dump-config"});
  ASSERT_EQ(second.exit, Exit::WithCode(0)) << second.error;
  const auto without_comments = [](const std::string& text) {
    std::string values;
    std::size_t begin = 0;
    while (begin < text.size()) {
      const std::size_t end = text.find('\n', begin);
      const std::string line = text.substr(begin, end - begin);
      values += line.substr(0, line.find('#')) + '\n';
      begin = end + 1;
    }
    return values;
  };
  EXPECT_EQ(without_comments(first.output), without_comments(second.output));
}

TEST(PhubdExposure, ListeningBeyondLoopbackNeedsInsecure) {
  const Finished refused = RunToEnd(kPhubd, {"--listen", "0.0.0.0:0"});
  EXPECT_EQ(refused.exit, Exit::WithCode(2));
  EXPECT_THAT(refused.error, HasSubstr("accept the risk with --insecure"));
  EXPECT_EQ(RunToEnd(kPhubd, {"--listen", "0.0.0.0:0", "--insecure", "--check-config"}).exit,
            Exit::WithCode(0));
}

TEST(PhubdCores, ACoreThatIsNotThereIsAUsageError) {
  const Finished refused = RunToEnd(kPhubd, {"--listen", "127.0.0.1:0", "--cores", "4001-4002"});
  EXPECT_EQ(refused.exit, Exit::WithCode(2));
  EXPECT_THAT(refused.error,
              HasSubstr("has core 4001, which this process may not use; usable cores:"));
}

}  // namespace
}  // namespace phub::process
