// Liveness rides on the lanes: jobs go on while control stands still, and workers and daemons whose
// lanes are silent are found, although other threads of theirs work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "phub/client.h"
#include "tests/process/daemon_process.h"
#include "tests/process/held_lock.h"
#include "tests/process/steady_training.h"
#include "tests/process/stopped_thread.h"
#include "tests/process/trainer.h"

namespace phub::process {
namespace {

using ::testing::HasSubstr;

// liveness_timeout is 2 s.
const DurationNs kOutage = (std::getenv("PHUB_TEST_LONG") != nullptr ? 10 : 5) * kSecond;

class LivenessTest : public ::testing::TestWithParam<TransportChoice> {
 protected:
  void SetUp() override { ASSERT_FALSE(daemon_.endpoint().empty()) << daemon_.process().Outputs(); }
  // A job of two ranks.
  SteadyTraining Train() const {
    JobOptions job{.job = "victim", .rank = 0, .world_size = 2};
    job.transport = GetParam();
    return {{daemon_.endpoint()}, job};
  }

  DaemonProcess daemon_;
};
INSTANTIATE_TEST_SUITE_P(Transports, LivenessTest,
                         ::testing::Values(TransportChoice::kTcp, TransportChoice::kSharedMemory),
                         [](const auto& transport) {
                           return transport.param == TransportChoice::kTcp ? "Tcp" : "SharedMemory";
                         });

TEST_P(LivenessTest, TrainingGoesOnWhileControlsThreadStandsStill) {
  SteadyTraining training = Train();
  ASSERT_TRUE(training.WaitFor(10));
  {
    const StoppedThread control(daemon_.process().pid(), "control");
    ASSERT_TRUE(control.stopped());
    ASSERT_FALSE(ControlIsStuck(daemon_.endpoint()));
    EXPECT_TRUE(training.GoesOnFor(kOutage));
  }
  EXPECT_EQ(training.Finish(), "");
}

TEST_P(LivenessTest, TrainingGoesOnWhileControlsThreadStandsStillWithTheLock) {
  SteadyTraining training = Train();
  ASSERT_TRUE(training.WaitFor(10));
  {
    const HeldLock control(daemon_.process().pid(), daemon_.endpoint());
    ASSERT_TRUE(control.held());
    EXPECT_TRUE(training.GoesOnFor(kOutage));
  }
  EXPECT_EQ(training.Finish(), "");
}

TEST_P(LivenessTest, AWorkerWhoseLanesAreSilentIsFoundAlthoughItsHeartbeatsArrive) {
  Process worker = Process::Start(
      PHUB_TEST_TRAINER, {"--endpoint", daemon_.endpoint(), "--job", "victim", "--rank", "1",
                          "--world-size", "2", "--iterations", "1000000"});
  JobOptions job{.job = "victim", .rank = 0, .world_size = 2};
  job.transport = GetParam();
  Result<Trainer> trainer = Trainer::Start(daemon_.endpoint(), job);
  ASSERT_TRUE(trainer.ok()) << ToString(trainer.status());
  ASSERT_TRUE(trainer->TrainUntil(3).ok());
  const StoppedThread engine(worker.pid(), "phub-engine");
  ASSERT_TRUE(engine.stopped());
  const Status status = trainer->TrainUntil(1000000);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("rank 1 ("));
  EXPECT_THAT(status.message(), HasSubstr("has been silent on all its"));
  EXPECT_THAT(status.message(), HasSubstr("although its heartbeats arrive"));
}

TEST_P(LivenessTest, ADaemonWhoseCoreLoopIsSilentIsNamedByItsWorkers) {
  JobOptions job{.job = "victim", .rank = 0, .world_size = 1};
  job.transport = GetParam();
  Result<Trainer> trainer = Trainer::Start(daemon_.endpoint(), job);
  ASSERT_TRUE(trainer.ok()) << ToString(trainer.status());
  ASSERT_TRUE(trainer->TrainUntil(3).ok());
  const StoppedThread core(daemon_.process().pid(), "core-0");
  ASSERT_TRUE(core.stopped());
  const Status status = trainer->TrainUntil(1000000);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr(daemon_.endpoint()));
  EXPECT_THAT(status.message(), HasSubstr("has been silent on"));
}

}  // namespace
}  // namespace phub::process
