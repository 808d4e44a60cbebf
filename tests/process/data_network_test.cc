// Control and data use different networks, and the data network fails without a word, in both
// directions or in one. Heartbeats still arrive. Both sides must learn of it in time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "tests/process/daemon_process.h"
#include "tests/process/two_networks.h"

namespace phub::process {
namespace {

using ::testing::HasSubstr;

// liveness_timeout is 2 s; then 1.5 timeouts, the diagnosis and the delays of a busy machine.
constexpr DurationNs kNoticeLimit = 6 * kSecond;

class DataNetworkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!networks_.problem().empty()) GTEST_SKIP() << networks_.problem();
    const std::string control = std::string(TwoNetworks::kControlAddress) + ":7700";
    daemon_.emplace(
        Process::Start(kPhubd, {"--listen", control, "--data-listen",
                                std::string(TwoNetworks::kDataAddress) + ":7701", "--insecure"}));
    ASSERT_TRUE(daemon_->WaitForOutput("serves on", 30 * kSecond)) << daemon_->Outputs();
    for (const char* rank : {"0", "1"}) {
      workers_.push_back(networks_.StartInOther(
          PHUB_TEST_TRAINER, {"--endpoint", control, "--job", "digits", "--rank", rank,
                              "--world-size", "2", "--iterations", "100000000"}));
    }
    ASSERT_TRUE(workers_[0].WaitForOutput("iteration 5\n", 30 * kSecond)) << workers_[0].Outputs();
  }
  // Every worker ends in time, and its error names the job and the silence. So does the daemon's
  // log.
  void ExpectNotice() {
    const SystemClock clock;
    const TimeNs end = clock.Now() + kNoticeLimit;
    for (Process& worker : workers_) {
      const auto exit = worker.Wait(std::max<DurationNs>(0, end - clock.Now()));
      ASSERT_TRUE(exit.has_value()) << "not noticed: " << daemon_->StandardError();
      EXPECT_EQ(*exit, Exit::WithCode(1)) << worker.Outputs();
      EXPECT_THAT(worker.StandardError(), HasSubstr("digits"));
      EXPECT_THAT(worker.StandardError(), HasSubstr("has been silent on"));
    }
    EXPECT_TRUE(daemon_->WaitForOutput("event=job_failed", kNoticeLimit));
    EXPECT_THAT(daemon_->StandardError(), HasSubstr("has been silent on"));
  }

  TwoNetworks networks_;
  std::optional<Process> daemon_;
  std::vector<Process> workers_;
};

TEST_F(DataNetworkTest, BothSidesNoticeThatItIsGone) {
  ASSERT_TRUE(networks_.CutDataToWorkers() && networks_.CutDataFromWorkers())
      << networks_.problem();
  ExpectNotice();
}

TEST_F(DataNetworkTest, BothSidesNoticeThatNothingReachesTheWorkers) {
  ASSERT_TRUE(networks_.CutDataToWorkers()) << networks_.problem();
  ExpectNotice();
}

TEST_F(DataNetworkTest, BothSidesNoticeThatNothingReachesTheDaemon) {
  ASSERT_TRUE(networks_.CutDataFromWorkers()) << networks_.problem();
  ExpectNotice();
}

}  // namespace
}  // namespace phub::process
