// Control and data use different networks, and the data network fails without a word, in both
// directions or in one. Heartbeats still arrive. Both sides must learn of it in time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "tests/process/daemon_process.h"
#include "tests/process/two_networks.h"

namespace phub::process {
namespace {

using ::testing::HasSubstr;
using Network = TwoNetworks::Network;

// liveness_timeout is 2 s; then 1.5 timeouts, the diagnosis and the delays of a busy machine.
constexpr DurationNs kNoticeLimit = 60 * kSecond;

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
  ASSERT_TRUE(networks_.CutToWorkers(Network::kData) && networks_.CutFromWorkers(Network::kData))
      << networks_.problem();
  ExpectNotice();
}

TEST_F(DataNetworkTest, BothSidesNoticeThatNothingReachesTheWorkers) {
  ASSERT_TRUE(networks_.CutToWorkers(Network::kData)) << networks_.problem();
  ExpectNotice();
}

TEST_F(DataNetworkTest, BothSidesNoticeThatNothingReachesTheDaemon) {
  ASSERT_TRUE(networks_.CutFromWorkers(Network::kData)) << networks_.problem();
  ExpectNotice();
}

// A rack of two daemons. The workers reach only the second one over the data network. If that fails
// in one direction, this daemon and the workers blame each other.
class OneDaemonCutOffTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!networks_.problem().empty()) GTEST_SKIP() << networks_.problem();
    const std::string control = TwoNetworks::kControlAddress;
    const std::string data = TwoNetworks::kDataAddress;
    const std::string first = control + ":7700";
    const std::string second = control + ":7710";
    for (const auto& [listen, data_listen] :
         {std::pair(first, control + ":7701"), std::pair(second, data + ":7711")}) {
      daemons_.push_back(Process::Start(
          kPhubd, {"--listen", listen, "--data-listen", data_listen, "--insecure", "--daemons",
                   first + "," + second, "--cores", "1", "--pin", "off"}));
    }
    for (Process& daemon : daemons_) {
      ASSERT_TRUE(daemon.WaitForOutput("serves on", 30 * kSecond)) << daemon.Outputs();
    }
    for (const char* rank : {"0", "1", "2"}) {
      workers_.push_back(networks_.StartInOther(
          PHUB_TEST_TRAINER, {"--endpoint", first, "--job", "digits", "--rank", rank,
                              "--world-size", "3", "--iterations", "100000000"}));
    }
    ASSERT_TRUE(workers_[0].WaitForOutput("iteration 5\n", 30 * kSecond)) << workers_[0].Outputs();
  }
  // Every worker ends in time, with the same reason.
  void ExpectOneReason() {
    const SystemClock clock;
    const TimeNs end = clock.Now() + kNoticeLimit;
    std::set<std::string> reasons;
    for (Process& worker : workers_) {
      const auto exit = worker.Wait(std::max<DurationNs>(0, end - clock.Now()));
      ASSERT_TRUE(exit.has_value()) << "not noticed: " << daemons_[1].StandardError();
      EXPECT_EQ(*exit, Exit::WithCode(1)) << worker.Outputs();
      // "rank 2: ABORTED: <reason>; key w was waiting in iteration 7"
      const std::string error = worker.StandardError();
      const std::size_t begin = error.rfind("\nrank ") + 1;
      const std::size_t text = error.find(": ", error.find(": ", begin) + 2) + 2;
      reasons.insert(error.substr(text, error.find("; key ", text) - text));
    }
    EXPECT_EQ(reasons.size(), 1u) << ::testing::PrintToString(reasons);
    EXPECT_THAT(*reasons.begin(), HasSubstr("has been silent on"));
  }

  TwoNetworks networks_;
  std::vector<Process> daemons_;
  std::vector<Process> workers_;
};

TEST_F(OneDaemonCutOffTest, AllRanksReportOneReasonIfNothingReachesTheWorkers) {
  ASSERT_TRUE(networks_.CutToWorkers(Network::kData)) << networks_.problem();
  ExpectOneReason();
}

TEST_F(OneDaemonCutOffTest, AllRanksReportOneReasonIfNothingReachesTheDaemon) {
  ASSERT_TRUE(networks_.CutFromWorkers(Network::kData)) << networks_.problem();
  ExpectOneReason();
}

}  // namespace
}  // namespace phub::process
