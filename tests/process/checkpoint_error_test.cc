// A running job ends with its daemon. The error that its workers receive names the checkpoint that
// an administrator saved, even if no rank asked for it, and the checkpoint that the job was loaded
// from.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>

#include "common/base/host_name.h"
#include "tests/process/rack_process.h"
#include "tests/process/training_process.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {
namespace {

using ::testing::HasSubstr;

constexpr DurationNs kPatience = 60 * kSecond;
constexpr std::uint32_t kRanks = 3;

// The parameter is the number of daemons.
class CheckpointError : public ::testing::TestWithParam<std::size_t> {
 protected:
  CheckpointError() : rack_(GetParam(), {"--cores", "2", "--pin", "off"}) {}
  void SetUp() override { ASSERT_TRUE(rack_.serving()) << rack_.Outputs(); }

  RackProcess rack_;
  TemporaryFolder folder_;
};

TEST_P(CheckpointError, EveryWorkerOfADaemonThatWasKilledNamesWhatPhubctlSaved) {
  const std::string directory = folder_.path() + "/by-administrator";
  const std::size_t victim = rack_.size() - 1;
  TrainerProcessOptions options{.endpoint = rack_.endpoint(0),
                                .job = "ended",
                                .world_size = kRanks,
                                .iterations = 1'000'000,
                                .more = {"--pause-ms", "1"}};
  std::vector<Process> trainers = StartTrainers(options);
  ASSERT_TRUE(WaitForIteration(trainers[0], 10, kPatience)) << trainers[0].Outputs();
  // Only the second checkpoint is the newest.
  const std::string first = folder_.path() + "/first";
  ASSERT_EQ(rack_.Ask(0, {"job", "save", "ended", first}).exit, Exit::WithCode(0));
  const Finished saved = rack_.Ask(0, {"job", "save", "ended", directory, "-o", "json"});
  ASSERT_EQ(saved.exit, Exit::WithCode(0)) << saved.error;
  EXPECT_EQ(saved.error, "");
  const std::size_t at = saved.output.find("\"iteration\": \"");
  ASSERT_NE(at, std::string::npos) << saved.output;
  const std::uint64_t iteration =
      std::strtoull(saved.output.c_str() + at + sizeof "\"iteration\": \"" - 1, nullptr, 10);
  const std::string named =
      fmt::format("iteration {} in {} on host {}", iteration, directory, HostName());
  for (std::size_t daemon = 0; daemon < rack_.size(); ++daemon) {
    const Finished shown = rack_.Ask(daemon, {"job", "get", "ended"});
    EXPECT_THAT(shown.output, HasSubstr(fmt::format("iteration {} in {} on {}, saved ", iteration,
                                                    directory, HostName())));
  }
  rack_.daemon(victim).Signal(SIGKILL);
  ASSERT_TRUE(rack_.daemon(victim).Wait(kPatience).has_value());
  rack_.Restart(victim);
  for (Process& trainer : trainers) {
    EXPECT_EQ(trainer.Wait(kPatience), Exit::WithCode(1)) << trainer.Outputs();
    EXPECT_THAT(VerdictOf(trainer), HasSubstr(rack_.endpoint(victim)));
    EXPECT_THAT(VerdictOf(trainer), HasSubstr(named));
  }
  // The checkpoints that the error names exist, and a job that loads one names it from then on.
  options.job = "resumed";
  options.more.insert(options.more.end(), {"--load", directory});
  std::vector<Process> resumed = StartTrainers(options);
  ASSERT_TRUE(WaitForIteration(resumed[0], iteration + 5, kPatience)) << resumed[0].Outputs();
  EXPECT_THAT(rack_.Ask(0, {"job", "get", "resumed"}).output,
              HasSubstr(fmt::format("iteration {} in {} on {}, loaded ", iteration, directory,
                                    HostName())));
  rack_.daemon(victim).Signal(SIGKILL);
  for (Process& trainer : resumed) {
    EXPECT_EQ(trainer.Wait(kPatience), Exit::WithCode(1)) << trainer.Outputs();
    EXPECT_THAT(VerdictOf(trainer), HasSubstr(named));
  }
}

INSTANTIATE_TEST_SUITE_P(Daemons, CheckpointError, ::testing::Values(1, 2),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace phub::process
