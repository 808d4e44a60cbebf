#include "server/config/config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "server/config/reload.h"
#include "server/config/setting_table.h"
#include "tests/unit/server/config/load_settings.h"

namespace phub::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string WriteFile(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + "phub_config_test_" + name;
  std::ofstream(path) << text;
  return path;
}

TEST(Config, DefaultsAreValidAndServeLoopbackOnly) {
  const Config config = Load({});
  EXPECT_THAT(config.problems, IsEmpty());
  EXPECT_EQ(config.settings.listen, "127.0.0.1:7700");
  EXPECT_EQ(config.settings.liveness_timeout, 2 * kSecond);
  EXPECT_EQ(config.settings.memory_max, 0u);  // auto
  EXPECT_EQ(config.settings.chunk_bytes, 128u * 1024);
  EXPECT_EQ(config.settings.pin, PinMode::kAuto);
  EXPECT_EQ(config.settings.log_level, LogLevel::kInfo);
  EXPECT_FALSE(config.settings.insecure);
  EXPECT_EQ(config.action, Action::kRun);
}

TEST(Config, EverySettingIsInHelpWithItsDefaultAndInTheDump) {
  const std::string help = HelpText();
  const std::string dump = DumpConfig(Load({}));
  std::set<std::string> variables;
  for (const Setting& setting : AllSettings()) {
    EXPECT_THAT(help, HasSubstr(fmt::format("  {}", setting.Flag()))) << setting.name;
    EXPECT_THAT(dump, HasSubstr(fmt::format("\n{} = ", setting.name))) << setting.name;
    EXPECT_THAT(ManPageText(), HasSubstr(fmt::format("\n.TP\n\\fB{}, ", setting.name)));
    EXPECT_TRUE(variables.insert(setting.Variable()).second) << setting.name;
  }
  EXPECT_THAT(help, HasSubstr("Exit codes: 0 success"));
}

TEST(Reload, OnlyWhatCanChangeChanges) {
  const Config running = Load({"--log-level=info", "--drain-timeout=5s", "--memory-max=1GiB"});
  const Config read = Load({"--log-level=debug", "--drain-timeout=5s", "--memory-max=2GiB"});
  const ConfigChanges changes = CompareConfigs(running, read);
  EXPECT_THAT(changes.applied, ElementsAre("log_level"));
  EXPECT_THAT(changes.need_restart, ElementsAre("memory_max"));
  const Settings after = SettingsAfterReload(running.settings, read.settings);
  EXPECT_EQ(after.log_level, LogLevel::kDebug);
  EXPECT_EQ(after.memory_max, kGibibyte);
}

TEST(Config, FlagWinsOverVariableOverFileOverDefault) {
  const std::string path = WriteFile("precedence.toml",
                                     "memory_max = \"1GiB\"\n"
                                     "liveness_timeout = \"3s\"\n"
                                     "chunk_bytes = 4096\n");
  const std::vector<std::string> environment = {"PHUB_MEMORY_MAX=2GiB", "PHUB_LIVENESS_TIMEOUT=4s",
                                                fmt::format("PHUB_CONFIG={}", path)};
  const Config config = Load({"--memory-max", "3GiB"}, environment);
  ASSERT_THAT(config.problems, IsEmpty());
  EXPECT_EQ(config.settings.memory_max, 3 * kGibibyte);
  EXPECT_EQ(config.settings.liveness_timeout, 4 * kSecond);
  EXPECT_EQ(config.settings.chunk_bytes, 4096u);
  EXPECT_EQ(config.settings.drain_timeout, 10 * kSecond);
  const std::string dump = DumpConfig(config);
  EXPECT_THAT(dump, HasSubstr("# from: --memory-max"));
  EXPECT_THAT(dump, HasSubstr("# from: PHUB_LIVENESS_TIMEOUT"));
  EXPECT_THAT(dump, HasSubstr(fmt::format("# from: {}:3:1", path)));
  EXPECT_THAT(dump, HasSubstr("# from: default"));
}

TEST(Config, FlagNamesTheFileThatIsReadInsteadOfTheVariables) {
  const std::string path = WriteFile("flag.toml", "chunk_bytes = \"8KiB\"\n");
  const Config config = Load({"--config", path.c_str()}, {"PHUB_CONFIG=/nonexistent"});
  ASSERT_THAT(config.problems, IsEmpty());
  EXPECT_EQ(config.settings.chunk_bytes, 8192u);
}

// A shell that is set up for phubctl or a worker can also start a daemon.
TEST(Config, VariablesOfClientsAreNoMistake) {
  for (const char* name :
       {"PHUB_ENDPOINT", "PHUB_TENANT", "PHUB_TIMEOUT", "PHUB_OUTPUT", "PHUB_JOB", "PHUB_RANK",
        "PHUB_WORLD_SIZE", "PHUB_TIMELINE", "PHUB_TIMELINE_ITERATIONS", "PHUB_TRANSPORT",
        "PHUB_TOKEN_FILE", "PHUB_CA_FILE", "PHUB_CERTIFICATE", "PHUB_KEY", "PHUB_SERVER_NAME",
        "PHUB_CONTEXT", "PHUB_CONTEXTS", "PHUB_LIBRARY", "PHUB_RUN"}) {
    EXPECT_THAT(Load({}, {fmt::format("{}=x", name)}).problems, IsEmpty()) << name;
  }
  EXPECT_THAT(Load({}, {"PHUB_CA_FILES=x"}).problems, SizeIs(1));
}

TEST(Config, DumpReadsBackToTheSameValues) {
  const Config first = Load({"--listen=[::1]:0", "--cores", "0-1", "--pin", "off", "--insecure",
                             "--liveness-timeout", "1500ms", "--port-file", "a \"b\"\\c",
                             "--chunk-bytes", "4160", "--log-level", "debug"});
  ASSERT_THAT(first.problems, IsEmpty());
  const std::string path = WriteFile("round_trip.toml", DumpConfig(first));
  const Config second = Load({"--config", path.c_str()});
  ASSERT_THAT(second.problems, IsEmpty());
  for (std::size_t i = 0; i < first.effective.size(); ++i) {
    EXPECT_EQ(first.effective[i].value, second.effective[i].value) << AllSettings()[i].name;
    EXPECT_EQ(second.effective[i].source, SettingSource::kFile) << AllSettings()[i].name;
  }
  EXPECT_EQ(second.settings.port_file, "a \"b\"\\c");
  EXPECT_EQ(second.settings.liveness_timeout, 1500 * kMillisecond);
  EXPECT_EQ(second.settings.log_level, LogLevel::kDebug);
}

TEST(Config, UnknownKeyNamesPlaceAndNearestSetting) {
  const Assignments read = ReadConfigText("# comment\n\n  lisen = \"127.0.0.1:1\"\n", "phubd.toml");
  EXPECT_THAT(read.problems,
              ElementsAre("phubd.toml:3:3: unknown setting \"lisen\"; did you mean \"listen\"?"));
}

TEST(Config, UnknownKeyWithoutANeighbourSaysWhereAllAreListed) {
  const Assignments read = ReadConfigText("[server]\nfoo = 1\n", "phubd.toml");
  ASSERT_THAT(read.problems, SizeIs(1));
  EXPECT_THAT(read.problems[0], HasSubstr("unknown table \"server\""));
  EXPECT_THAT(read.problems[0], HasSubstr("phubd --dump-config"));
}

TEST(Config, WrongTypesNameKeyPlaceAndWhatIsAllowed) {
  const Assignments read = ReadConfigText(
      "listen = 7700\n"
      "insecure = \"yes\"\n"
      "liveness_timeout = 2\n"
      "memory_max = [1]\n"
      "pin = true\n"
      "chunk_bytes = -5\n",
      "f.toml");
  EXPECT_THAT(
      read.problems,
      ::testing::UnorderedElementsAre(
          "f.toml:1:10: listen = 7700 is a number, but must be a string in quotes (address:port)",
          "f.toml:2:12: insecure = \"yes\" is a string, but must be true or false, without quotes "
          "(true or false)",
          "f.toml:3:20: liveness_timeout = 2 has no unit; write it in quotes, like \"2s\"",
          "f.toml:4:14: memory_max cannot be an array; allowed: auto, or 16MiB to 1024TiB",
          "f.toml:5:7: pin = true is a boolean, but must be a string in quotes (auto, on or off)",
          "f.toml:6:15: chunk_bytes = -5 is negative; allowed: 256 to 4MiB, a multiple of 64"));
}

TEST(Config, OutOfRangeValuesNameTheRange) {
  const Assignments read = ReadConfigText("liveness_timeout = \"50ms\"\n", "f.toml");
  EXPECT_THAT(read.problems,
              ElementsAre("f.toml:1:20: liveness_timeout = \"50ms\" is out of range; allowed: "
                          "100ms to 1h"));
  const Config config = Load({"--chunk-bytes=100KB"}, {"PHUB_MEMORY_MAX=1KiB"});
  EXPECT_THAT(
      config.problems,
      ElementsAre("PHUB_MEMORY_MAX: \"1KiB\" is out of range; allowed: auto, or 16MiB to 1024TiB",
                  "--chunk-bytes: \"100KB\" is not a multiple of 64; the next lower one is 99968"));
}

TEST(Config, BrokenTomlSaysLineAndColumn) {
  const Assignments read = ReadConfigText("listen = \"127.0.0.1:7700\"\npin = \n", "f.toml");
  ASSERT_THAT(read.problems, SizeIs(1));
  EXPECT_THAT(read.problems[0], HasSubstr("f.toml:2:"));
  EXPECT_THAT(read.problems[0], HasSubstr("not TOML"));
}

TEST(Config, AKeyGivenTwiceIsAnError) {
  const Assignments read = ReadConfigText("pin = \"on\"\npin = \"off\"\n", "f.toml");
  ASSERT_THAT(read.problems, SizeIs(1));
  EXPECT_THAT(read.problems[0], HasSubstr("f.toml:2:"));
}

TEST(Config, MissingFileIsNamed) {
  const Config config = Load({"-c", "/nonexistent/phubd.toml"});
  EXPECT_THAT(config.problems,
              ElementsAre("/nonexistent/phubd.toml: cannot be read: No such file or directory"));
}

TEST(Config, DirectoryAsFileIsAnError) {
  const Config config = Load({"-c", "/"});
  ASSERT_THAT(config.problems, SizeIs(1));
  EXPECT_THAT(config.problems[0], HasSubstr("/: cannot be read: Is a directory"));
}

TEST(Config, UnknownVariableSuggestsTheNearest) {
  const Config config = Load({}, {"PHUB_LISTN=127.0.0.1:1"});
  EXPECT_THAT(config.problems, ElementsAre("PHUB_LISTN: unknown PHUB_ variable; did you mean "
                                           "\"PHUB_LISTEN\"?"));
}

TEST(Config, WithoutAFrontOnlyLoopbackIsServed) {
  EXPECT_THAT(Load({"--front=false", "--listen", "localhost:1"}).problems, IsEmpty());
  const Config config = Load({"--front=false", "--listen", "0.0.0.0:1", "--insecure"});
  ASSERT_THAT(config.problems, SizeIs(1));
  EXPECT_THAT(config.problems[0], HasSubstr("listen = \"0.0.0.0:1\" can be reached"));
}

TEST(Config, VariablesOfClientsAndOrchestratorsAreNotErrors) {
  const Config config =
      Load({}, {"PHUB_ENDPOINT=x", "PHUB_RANK=0", "PHUB_SIM_SEED=1", "PHUB_SERVICE_HOST=10.0.0.1",
                "PHUB_SERVICE_PORT_GRPC=7700", "PHUB_PORT=tcp://10.0.0.1:7700",
                "PHUB_PORT_7700_TCP_ADDR=10.0.0.1", "PATH=/bin", "PHUBX=1"});
  EXPECT_THAT(config.problems, IsEmpty());
}

TEST(Config, EmptyVariableCountsAsNotSet) {
  const Config config = Load({}, {"PHUB_LISTEN="});
  EXPECT_THAT(config.problems, IsEmpty());
  EXPECT_EQ(config.settings.listen, "127.0.0.1:7700");
}

TEST(Config, UnknownFlagSuggestsTheNearest) {
  EXPECT_THAT(Load({"--lissten=x"}).problems,
              ElementsAre("unknown flag \"--lissten\"; did you mean \"--listen\"?"));
  EXPECT_THAT(Load({"--liveness_timeout", "3s"}).problems,
              ElementsAre("unknown flag \"--liveness_timeout\"; did you mean "
                          "\"--liveness-timeout\"?"));
  EXPECT_THAT(Load({"--frobnicate"}).problems,
              ElementsAre("unknown flag \"--frobnicate\"; phubd --help lists all flags"));
  ASSERT_THAT(Load({"start"}).problems, SizeIs(1));
  EXPECT_THAT(Load({"start"}).problems[0], HasSubstr("unexpected argument \"start\""));
}

TEST(Config, FlagWithoutItsValueIsAnError) {
  const Config config = Load({"--listen"});
  ASSERT_THAT(config.problems, SizeIs(1));
  EXPECT_THAT(config.problems[0], HasSubstr("--listen"));
}

TEST(Config, EveryProblemIsReportedAtOnce) {
  const std::string path = WriteFile("many.toml", "lisen = 1\npin = \"maybe\"\n");
  const Config config = Load({"--config", path.c_str(), "--wait=pol"}, {"PHUB_CORES=x"});
  EXPECT_THAT(config.problems, SizeIs(4));
  EXPECT_THAT(config.problems, ::testing::Contains(HasSubstr(
                                   "--wait: \"pol\" is not one of auto, poll or block; did "
                                   "you mean \"poll\"?")));
}

TEST(Config, ListeningBeyondLoopbackNeedsInsecure) {
  for (const char* address : {"0.0.0.0:7700", "10.1.2.3:0", "[::]:7700", "node5:7700"}) {
    const Config refused = Load({"--listen", address});
    ASSERT_THAT(refused.problems, SizeIs(1)) << address;
    EXPECT_THAT(refused.problems[0], HasSubstr(fmt::format("--listen: listen = \"{}\"", address)));
    EXPECT_THAT(refused.problems[0], HasSubstr("--insecure"));
    EXPECT_THAT(Load({"--listen", address, "--insecure"}).problems, IsEmpty()) << address;
  }
  EXPECT_THAT(Load({"--data-listen", "0.0.0.0:0"}).problems, SizeIs(1));
  for (const char* address : {"127.0.0.1:0", "127.8.9.1:1", "[::1]:7700", "localhost:7700"})
    EXPECT_THAT(Load({"--listen", address}).problems, IsEmpty()) << address;
}

TEST(Config, TlsAndIdentitiesAllowListeningBeyondLoopback) {
  const std::vector<const char*> tls = {"--listen", "0.0.0.0:7700", "--tls-certificate",
                                        "node.crt", "--tls-key",    "node.key"};
  const auto with = [](std::vector<const char*> arguments, std::vector<const char*> more) {
    arguments.insert(arguments.begin(), "phubd");
    arguments.insert(arguments.end(), more.begin(), more.end());
    return LoadConfig(arguments, {}).problems;
  };
  EXPECT_THAT(with(tls, {"--state-dir", "/var/lib/phub"}), IsEmpty());
  // Expect: either setting alone is not enough, and the message names the missing one.
  EXPECT_THAT(with(tls, {}), ::testing::ElementsAre(HasSubstr("would not be authenticated")));
  EXPECT_THAT(with({"--listen", "0.0.0.0:7700", "--state-dir", "s"}, {}),
              ::testing::ElementsAre(HasSubstr("would not be encrypted")));
  EXPECT_THAT(with({"--tls-certificate", "c"}, {}),
              ::testing::ElementsAre(HasSubstr("tls_certificate needs tls_key")));
  EXPECT_THAT(with({"--tls-key", "k"}, {}),
              ::testing::ElementsAre(HasSubstr("tls_key needs tls_certificate")));
  EXPECT_THAT(with(tls, {"--state-dir", "s", "--tls-client-ca", "a"}), IsEmpty());
  EXPECT_THAT(with({"--trust-domain", "a/b"}, {}),
              ::testing::ElementsAre(HasSubstr("trust_domain = \"a/b\"")));
}

TEST(Config, MalformedAddressesSayWhatIsMissing) {
  EXPECT_THAT(Load({"--listen", "127.0.0.1"}).problems[0], HasSubstr("has no port"));
  EXPECT_THAT(Load({"--listen", ":7700"}).problems[0], HasSubstr("has no host"));
  EXPECT_THAT(Load({"--listen", "::1:7700"}).problems[0], HasSubstr("needs brackets"));
  EXPECT_THAT(Load({"--listen", "127.0.0.1:99999"}).problems[0], HasSubstr("0 to 65535"));
  EXPECT_THAT(Load({"--listen", "127.0.0.1:http"}).problems[0], HasSubstr("\"http\""));
}

TEST(Config, StagingMustHoldAChunk) {
  const Config config = Load({"--staging-bytes-per-lane", "32KiB"});
  ASSERT_THAT(config.problems, SizeIs(1));
  EXPECT_THAT(config.problems[0],
              HasSubstr("--staging-bytes-per-lane: staging_bytes_per_lane (32KiB, from "
                        "--staging-bytes-per-lane) is smaller than chunk_bytes (128KiB, from "
                        "default)"));
}

TEST(Config, HelpAndVersionWinOverProblems) {
  EXPECT_EQ(Load({"--help"}, {"PHUB_LISTN=1"}).action, Action::kHelp);
  EXPECT_THAT(Load({"--help"}, {"PHUB_LISTN=1"}).problems, IsEmpty());
  EXPECT_EQ(Load({"--version", "--check-config"}).action, Action::kVersion);
}

TEST(Config, SharedMemoryIsOnUnlessItIsSwitchedOff) {
  EXPECT_EQ(Load({}).settings.shm, ShmMode::kOn);
  EXPECT_EQ(Load({"--shm", "off"}).settings.shm, ShmMode::kOff);
  EXPECT_THAT(Load({"--shm", "maybe"}).problems, SizeIs(1));
}

}  // namespace
}  // namespace phub::server
