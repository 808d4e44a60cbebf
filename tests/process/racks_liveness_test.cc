// Liveness rides on the lanes between racks, too: jobs that span racks of several daemons go on
// while control stands still in both racks, and a daemon whose lanes are silent is found.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/process/held_lock.h"
#include "tests/process/rack_process.h"
#include "tests/process/steady_training.h"
#include "tests/process/stopped_thread.h"
#include "tests/process/training_process.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// liveness_timeout is 2 s.
const DurationNs kOutageOfControl = (std::getenv("PHUB_TEST_LONG") != nullptr ? 10 : 5) * kSecond;

class RacksLivenessTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kRanks = 4;  // in two racks of two daemons

  RacksLivenessTest()
      : racks_(4, {"--cores", "1", "--pin", "off"}, RackProcess::Kind::kManyRacks, 0, 2) {}
  void SetUp() override { ASSERT_TRUE(racks_.serving()) << racks_.Outputs(); }

  RackProcess racks_;
};

// The first daemon of rack 0, which opens jobs, stands still with its lock, and the second daemon
// of rack 1 without.
TEST_F(RacksLivenessTest, TrainingGoesOnWhileControlsThreadsStandStill) {
  JobOptions job{.job = "victim", .rank = 0, .world_size = kRanks};
  job.plan = "ring";
  SteadyTraining training({racks_.endpoint(0), racks_.endpoint(2)}, job);
  ASSERT_TRUE(training.WaitFor(10)) << racks_.Outputs();
  {
    const StoppedThread last(racks_.daemon(3).pid(), "control");
    ASSERT_TRUE(last.stopped());
    const HeldLock first(racks_.daemon(0).pid(), racks_.endpoint(0));
    ASSERT_TRUE(first.held());
    EXPECT_TRUE(training.GoesOnFor(kOutageOfControl));
  }
  EXPECT_EQ(training.Finish(), "");
}

// Control of rack 1's second daemon works, and its heartbeats arrive.
TEST_F(RacksLivenessTest, ADaemonWhoseCoreLoopIsSilentIsNamedInBothRacks) {
  std::vector<Process> trainers;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    trainers.push_back(StartTrainer({.endpoint = racks_.endpoint(rank),
                                     .job = "training",
                                     .rank = rank,
                                     .world_size = kRanks,
                                     .iterations = 100'000'000,
                                     .more = {"--plan", "ring"}}));
  }
  for (Process& trainer : trainers) {
    ASSERT_TRUE(WaitForIteration(trainer, 20, 20 * kSecond)) << trainer.Outputs();
  }
  const StoppedThread core(racks_.daemon(3).pid(), "core-0");
  ASSERT_TRUE(core.stopped());
  for (Process& trainer : trainers) {
    EXPECT_EQ(trainer.Wait(10 * kSecond), Exit::WithCode(1)) << trainer.Outputs();
    EXPECT_THAT(VerdictOf(trainer), AllOf(HasSubstr("training"), HasSubstr(racks_.endpoint(3)),
                                          HasSubstr("has been silent on")));
  }
}

}  // namespace
}  // namespace phub::process
