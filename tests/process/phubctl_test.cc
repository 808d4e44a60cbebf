// phubctl against a real daemon without jobs, and without a daemon.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "tests/process/daemon_process.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class PhubctlOnIdleDaemon : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { daemon_ = new DaemonProcess(); }
  static void TearDownTestSuite() {
    delete daemon_;
    daemon_ = nullptr;
  }
  void SetUp() override { ASSERT_NE(daemon_->endpoint(), "") << daemon_->process().Outputs(); }
  static DaemonProcess* daemon_;
};
DaemonProcess* PhubctlOnIdleDaemon::daemon_ = nullptr;

TEST_F(PhubctlOnIdleDaemon, HealthIsServing) {
  const Finished health = daemon_->Ask({"health"});
  EXPECT_EQ(health.exit, Exit::WithCode(0));
  EXPECT_EQ(health.output, "serving\n");
  EXPECT_EQ(health.error, "");
  EXPECT_THAT(daemon_->Ask({"-o", "json", "health"}).output, HasSubstr("\"status\": \"SERVING\""));
}

TEST_F(PhubctlOnIdleDaemon, VersionNamesBothSides) {
  const Finished version = daemon_->Ask({"version"});
  EXPECT_EQ(version.exit, Exit::WithCode(0)) << version.error;
  EXPECT_THAT(version.output, StartsWith("phubctl  0.1.0 ("));
  EXPECT_THAT(version.output, HasSubstr("\nphubd    0.1.0 ("));
  EXPECT_THAT(version.output, HasSubstr("serving for "));
  const Finished json = daemon_->Ask({"version", "-o", "json"});
  EXPECT_THAT(json.output, HasSubstr("\"protocol_version_max\": 1"));
  EXPECT_THAT(json.output, HasSubstr("\"state\": \"serving\""));
}

// The bound addresses of every family, as the daemon logged them.
TEST(PhubctlServerList, ShowsWhereThePortsListen) {
  DaemonProcess daemon({"--listen", "localhost:0", "--metrics-listen", "localhost:0"});
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  const std::string metrics = daemon.Logged("metrics");  // http://127.0.0.1:PORT/metrics,...
  EXPECT_THAT(metrics, Not(HasSubstr("localhost")));
  const std::string metrics_port = metrics.substr(0, metrics.rfind('/')).substr(metrics.rfind(':'));
  const Finished table = daemon.Ask({"server", "list"});
  EXPECT_EQ(table.exit, Exit::WithCode(0)) << table.error;
  const std::string listens = daemon.Logged("listen") + "  " + daemon.Logged("data_listen") + "  ";
  EXPECT_THAT(table.output, AllOf(HasSubstr(listens), HasSubstr("127.0.0.1" + metrics_port)));
  const Finished json = daemon.Ask({"server", "list", "-o", "json"});
  EXPECT_EQ(json.exit, Exit::WithCode(0)) << json.error;
  EXPECT_THAT(json.output, AllOf(HasSubstr("\"listen\":[\"" + daemon.endpoint()),
                                 HasSubstr("\"data_listen\":[\""),
                                 HasSubstr("\"metrics_listen\":[\"127.0.0.1" + metrics_port)));
}

TEST_F(PhubctlOnIdleDaemon, JobListIsATitleLineOrAnEmptyList) {
  const Finished table = daemon_->Ask({"job", "list"});
  EXPECT_EQ(table.exit, Exit::WithCode(0)) << table.error;
  EXPECT_EQ(table.output,
            "TENANT  JOB  STATE  WORKERS  ITERATION  EACH  KEYS  PARAMETERS  MEMORY  AGE\n");
  EXPECT_EQ(daemon_->Ask({"job", "list", "--output=json"}).output, "{\n \"jobs\": []\n}\n");
}

TEST_F(PhubctlOnIdleDaemon, AJobThatIsNotThereIsExitCode3) {
  for (const char* what : {"get", "stalls"}) {
    const Finished missing = daemon_->Ask({"job", what, "digits"});
    EXPECT_EQ(missing.exit, Exit::WithCode(3)) << what << missing.error;
    EXPECT_THAT(missing.error, HasSubstr("digits"));
    EXPECT_EQ(missing.output, "");
  }
}

TEST_F(PhubctlOnIdleDaemon, AfterTwoDashesAnythingIsAName) {
  const Finished shown = daemon_->Ask({"job", "get", "--", "-o"});
  EXPECT_EQ(shown.exit, Exit::WithCode(3)) << shown.error;
  EXPECT_THAT(shown.error, HasSubstr("has no job -o"));
}

TEST_F(PhubctlOnIdleDaemon, StatsListCountersOfEveryCore) {
  const Finished all = daemon_->Ask({"stats", "--all"});
  EXPECT_EQ(all.exit, Exit::WithCode(0)) << all.error;
  EXPECT_THAT(all.output, StartsWith("COUNTER "));
  EXPECT_THAT(all.output, HasSubstr("phub_gradients_total"));
  EXPECT_THAT(daemon_->Ask({"stats", "-o", "json"}).output,
              HasSubstr("\"name\": \"phub_gradients_total\""));
}

TEST_F(PhubctlOnIdleDaemon, TopShowsARackWithoutJobs) {
  const Finished top = daemon_->Ask({"top", "--once", "--interval", "200ms"});
  EXPECT_EQ(top.exit, Exit::WithCode(0)) << top.error;
  EXPECT_THAT(top.output, StartsWith("DAEMON "));
  EXPECT_THAT(top.output, HasSubstr(daemon_->endpoint()));
  EXPECT_THAT(top.output, HasSubstr("0%"));
  EXPECT_THAT(top.output, HasSubstr("\ndefault "));
  const Finished json = daemon_->Ask({"top", "--once", "--interval=200ms", "-o", "json"});
  EXPECT_THAT(json.output, HasSubstr("\"jobs\":[]}"));
}

TEST_F(PhubctlOnIdleDaemon, ServerListIsOneRowOfARackOfItsOwn) {
  const Finished list = daemon_->Ask({"server", "list"});
  EXPECT_EQ(list.exit, Exit::WithCode(0)) << list.error;
  EXPECT_THAT(list.output, StartsWith("ENDPOINT "));
  EXPECT_THAT(list.output, HasSubstr(daemon_->endpoint()));
  EXPECT_THAT(list.output, HasSubstr("serving"));
  EXPECT_THAT(daemon_->Ask({"server", "list", "-o", "json"}).output, HasSubstr("\"error\": \"\""));
}

TEST_F(PhubctlOnIdleDaemon, DrainAndUndrainChangeWhatHealthSays) {
  const Finished drained = daemon_->Ask({"server", "drain", "--deadline", "1m", "--wait"});
  EXPECT_EQ(drained.exit, Exit::WithCode(0)) << drained.error;
  EXPECT_THAT(drained.output, HasSubstr("draining"));
  EXPECT_EQ(daemon_->Ask({"health"}).exit, Exit::WithCode(1));
  EXPECT_THAT(daemon_->Ask({"server", "undrain"}).output, HasSubstr("serving"));
  EXPECT_EQ(daemon_->Ask({"health"}).exit, Exit::WithCode(0));
}

TEST_F(PhubctlOnIdleDaemon, ChangingAJobThatIsNotThereIsExitCode3) {
  EXPECT_EQ(daemon_->Ask({"job", "evict", "digits", "--yes"}).exit, Exit::WithCode(3));
  EXPECT_EQ(daemon_->Ask({"job", "save", "digits", "/nowhere"}).exit, Exit::WithCode(3));
}

TEST_F(PhubctlOnIdleDaemon, WatchAsksAgain) {
  Process watching = Process::Start(
      kPhubctl, {"-e", daemon_->endpoint(), "job", "list", "-o", "json", "--watch=100ms"});
  EXPECT_TRUE(watching.WaitForOutput("{\"jobs\":[]}\n{\"jobs\":[]}\n{\"jobs\":[]}\n", 20 * kSecond))
      << watching.Outputs();
  EXPECT_TRUE(watching.IsRunning());
  Process tokens = Process::Start(
      kPhubctl, {"-e", daemon_->endpoint(), "token", "list", "-o", "json", "-w", "100ms"});
  EXPECT_TRUE(tokens.WaitForOutput("{\"tokens\":[]}\n{\"tokens\":[]}\n", 20 * kSecond))
      << tokens.Outputs();
}

TEST_F(PhubctlOnIdleDaemon, WatchingWhatIsNotThereIsExitCode3) {
  const Finished gone = daemon_->Ask({"job", "get", "digits", "--watch=100ms"});
  EXPECT_EQ(gone.exit, Exit::WithCode(3));
  EXPECT_EQ(gone.output, "");
}

TEST_F(PhubctlOnIdleDaemon, EndpointsMayBeWrittenAsUrls) {
  const Finished health =
      RunToEnd(kPhubctl, {"--endpoint", fmt::format("phub://{}", daemon_->endpoint()), "health"});
  EXPECT_EQ(health.exit, Exit::WithCode(0)) << health.error;
}

TEST(Phubctl, ADaemonThatIsNotThereIsExitCode5) {
  // A port that was free a moment ago, of a daemon that has ended.
  std::string endpoint;
  {
    DaemonProcess daemon;
    endpoint = daemon.endpoint();
    ASSERT_NE(endpoint, "") << daemon.process().Outputs();
  }
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"health"}, {"version"}, {"job", "list"}, {"stats"}, {"top"}}) {
    std::vector<std::string> arguments = {"-e", endpoint};
    arguments.insert(arguments.end(), command.begin(), command.end());
    const Finished failed = RunToEnd(kPhubctl, arguments);
    EXPECT_EQ(failed.exit, Exit::WithCode(5)) << command.front();
    EXPECT_THAT(failed.error,
                HasSubstr(fmt::format("cannot connect to {}: Connection refused", endpoint)));
    EXPECT_THAT(failed.error, HasSubstr("--endpoint or PHUB_ENDPOINT"));
  }
}

TEST(Phubctl, ADaemonThatHangsIsExitCode5WithinTheTimeout) {
  DaemonProcess daemon;
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  daemon.process().Signal(SIGSTOP);
  const Finished failed = daemon.Ask({"job", "list", "--timeout", "300ms"});
  EXPECT_EQ(failed.exit, Exit::WithCode(5));
  EXPECT_THAT(failed.error, HasSubstr("did not answer within 300ms"));
  // Health comes from the front, which notices after 3 s that phubd is silent.
  Finished health = daemon.Ask({"health"});
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (health.exit == Exit::WithCode(0) && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    health = daemon.Ask({"health"});
  }
  EXPECT_EQ(health.exit, Exit::WithCode(1)) << health.error;
  daemon.process().Signal(SIGCONT);
}

struct Misuse {
  const char* name;
  std::vector<std::string> arguments;
  const char* message;
};

class PhubctlMisuse : public ::testing::TestWithParam<Misuse> {};

TEST_P(PhubctlMisuse, IsExitCode2AndSaysWhatWasMeant) {
  const Finished refused = RunToEnd(kPhubctl, GetParam().arguments);
  EXPECT_EQ(refused.exit, Exit::WithCode(2));
  EXPECT_THAT(refused.error, HasSubstr(GetParam().message));
  EXPECT_EQ(refused.output, "");
}

INSTANTIATE_TEST_SUITE_P(
    Cases, PhubctlMisuse,
    ::testing::Values(
        Misuse{"Nothing", {}, "a command is missing"},
        Misuse{"UnknownCommand", {"helth"}, "unknown command \"helth\"; did you mean \"health\"?"},
        Misuse{"UnknownSubcommand",
               {"job", "stall", "x"},
               "unknown command \"stall\"; did you mean \"stalls\"?"},
        Misuse{"UnknownOption",
               {"health", "--endpiont=x"},
               "unknown option \"--endpiont\"; did you mean \"--endpoint\"?"},
        Misuse{"MissingName", {"job", "get"}, "NAME is required"},
        Misuse{"BadFormat", {"job", "list", "-o", "yaml"}, "yaml not in {table,wide,json}"},
        Misuse{
            "BadInterval", {"top", "--interval", "1ms"}, "\"1ms\" is not an interval of at least"},
        Misuse{"BadTimeout", {"health", "--timeout", "5"}, "\"5\" is not a duration"}),
    [](const auto& misuse) { return misuse.param.name; });

TEST(Phubctl, HelpAndVersionNeedNoDaemon) {
  const Finished help = RunToEnd(kPhubctl, {"--help"});
  EXPECT_EQ(help.exit, Exit::WithCode(0));
  EXPECT_THAT(help.output, HasSubstr("Exit codes: 0 ok; 1 failure; 2 wrong usage; 3 not found"));
  EXPECT_THAT(RunToEnd(kPhubctl, {"job", "stalls", "--help"}).output, HasSubstr("WAITING FOR"));
  EXPECT_THAT(RunToEnd(kPhubctl, {"--version"}).output, StartsWith("phubctl 0.1.0 ("));
}

// Asks the script, in a real bash, for the completions of the words.
std::string Completions(const std::string& words) {
  const std::string script = "set -e; script=\"$(" + std::string(kPhubctl) +
                             " completion bash)\"; bash -n <<<\"$script\"; source /dev/stdin "
                             "<<<\"$script\"; COMP_WORDS=(" +
                             words +
                             "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _phubctl; "
                             "echo \" ${COMPREPLY[*]} \"";
  const Finished finished = RunToEnd("/bin/bash", {"-c", script});
  EXPECT_EQ(finished.exit, Exit::WithCode(0)) << finished.error;
  return finished.output;
}

TEST(Phubctl, TheManualPageHasEveryCommand) {
  const Finished page = RunToEnd(kPhubctl, {"man-page"});
  EXPECT_EQ(page.exit, Exit::WithCode(0));
  for (const char* part : {".TH \"PHUBCTL\" 1", ".SS \"phubctl job stalls\"", "phubctl top",
                           "phubctl server drain", "(PHUB_ENDPOINT)", "Exit codes: 0 ok"}) {
    EXPECT_THAT(page.output, HasSubstr(part));
  }
}

TEST(PhubctlCompletion, KnowsCommandsAndOptions) {
  EXPECT_THAT(Completions("phubctl \"\""), HasSubstr(" server "));
  EXPECT_EQ(Completions("phubctl job sta"), " stalls \n");
  EXPECT_THAT(Completions("phubctl -o json job \"\""), HasSubstr(" evict "));
  EXPECT_THAT(Completions("phubctl server drain --d"), HasSubstr(" --deadline "));
  EXPECT_EQ(Completions("phubctl --output \"\""), "  \n");
  EXPECT_THAT(Completions("phubctl \"\""), Not(HasSubstr("man-page")));  // a hidden command
  const Finished zsh = RunToEnd(kPhubctl, {"completion", "zsh"});
  EXPECT_THAT(zsh.output, StartsWith("#compdef phubctl\n"));
}

}  // namespace
}  // namespace phub::process
