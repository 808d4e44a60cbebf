// Control and data use different networks, and the control network fails without a word, in both
// directions or in one. Nobody's death follows from that: the job goes on over the data network.
// A rank that is done waits until it can leave.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "tests/process/daemon_process.h"
#include "tests/process/two_networks.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {
namespace {

using Network = TwoNetworks::Network;

constexpr DurationNs kPatience = 120 * kSecond;
constexpr DurationNs kLivenessTimeout = 2 * kSecond;  // the default
const bool kLong = std::getenv("PHUB_TEST_LONG") != nullptr;
// So long is the control network cut, counted in liveness timeouts.
const int kTimeouts = kLong ? 30 : 2;
constexpr int kPauseMs = 15;
const int kIterations = static_cast<int>(kTimeouts * kLivenessTimeout / kMillisecond) / kPauseMs;

class ControlNetworkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!networks_.problem().empty()) GTEST_SKIP() << networks_.problem();
    daemon_.emplace(
        Process::Start(kPhubd, {"--listen", endpoint_, "--data-listen",
                                std::string(TwoNetworks::kDataAddress) + ":7701", "--insecure"}));
    ASSERT_TRUE(daemon_->WaitForOutput("serves on", kPatience)) << daemon_->Outputs();
    Start("calm", 0);
    for (Process& worker : workers_) EXPECT_EQ(worker.Wait(kPatience), Exit::WithCode(0));
    Start("digits", kPauseMs);
    ASSERT_TRUE(workers_[0].WaitForOutput("iteration 5\n", kPatience)) << workers_[0].Outputs();
  }
  void Start(const std::string& job, int pause_ms) {
    workers_.clear();
    for (const char* rank : {"0", "1"}) {
      workers_.push_back(networks_.StartInOther(
          PHUB_TEST_TRAINER,
          {"--endpoint", endpoint_, "--job", job, "--rank", rank, "--world-size", "2",
           "--iterations", std::to_string(kIterations), "--pause-ms", std::to_string(pause_ms),
           "--out", folder_.path() + "/" + job + rank}));
    }
  }
  std::string Parameters(const std::string& job_and_rank) const {
    std::ifstream file(folder_.path() + "/" + job_and_rank, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // The control network is cut until all iterations are done, and the ranks wait to leave.
  void ExpectNoHarm(bool to_workers, bool from_workers) {
    ASSERT_TRUE(!to_workers || networks_.CutToWorkers(Network::kControl));
    ASSERT_TRUE(!from_workers || networks_.CutFromWorkers(Network::kControl));
    const std::string last = "iteration " + std::to_string(kIterations) + "\n";
    for (Process& worker : workers_) {
      ASSERT_TRUE(worker.WaitForOutput(last, kPatience)) << worker.Outputs();
    }
    Sleep(kLivenessTimeout);
    for (Process& worker : workers_) EXPECT_TRUE(worker.IsRunning()) << worker.Outputs();
    ASSERT_TRUE(!to_workers || networks_.RestoreToWorkers(Network::kControl));
    ASSERT_TRUE(!from_workers || networks_.RestoreFromWorkers(Network::kControl));
    for (Process& worker : workers_) {
      EXPECT_EQ(worker.Wait(kPatience), Exit::WithCode(0)) << worker.Outputs();
    }
    const std::string calm = Parameters("calm0");
    EXPECT_FALSE(calm.empty());
    for (const char* rank : {"digits0", "digits1"}) EXPECT_TRUE(Parameters(rank) == calm) << rank;
    EXPECT_EQ(daemon_->StandardError().find("event=job_failed"), std::string::npos)
        << daemon_->StandardError();
  }

  const std::string endpoint_ = std::string(TwoNetworks::kControlAddress) + ":7700";
  TemporaryFolder folder_;
  TwoNetworks networks_;
  std::optional<Process> daemon_;
  std::vector<Process> workers_;
};

TEST_F(ControlNetworkTest, TrainingGoesOnWhileItIsGone) { ExpectNoHarm(true, true); }

TEST_F(ControlNetworkTest, TrainingGoesOnWhileNothingReachesTheWorkers) {
  ExpectNoHarm(true, false);
}

TEST_F(ControlNetworkTest, TrainingGoesOnWhileNothingReachesTheDaemon) {
  ExpectNoHarm(false, true);
}

}  // namespace
}  // namespace phub::process
