// Kills real workers (phub-digits) of a real daemon while they train. Every survivor must name the
// lost rank in time, and the daemon must free the job's memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "tests/process/daemon_process.h"

namespace phub::process {
namespace {

constexpr int kRanks = 4;
// liveness_timeout (2 s), plus the diagnosis and the delays of a busy machine.
constexpr DurationNs kNoticeLimit = 60 * kSecond;

class KillTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_FALSE(daemon_.endpoint().empty()) << daemon_.process().Outputs(); }

  void StartWorkers() {
    const std::uint64_t rounds_before = Rounds();
    for (int rank = 0; rank < kRanks; ++rank) {
      workers_.push_back(Process::Start(
          PHUB_TEST_DIGITS,
          {"--endpoint", daemon_.endpoint(), "--rank", std::to_string(rank), "--world-size",
           std::to_string(kRanks), "--data", PHUB_TEST_DIGITS_DATA, "--iterations", "1000000"}));
    }
    const TimeNs deadline = clock_.Now() + 20 * kSecond;
    while (Rounds() < rounds_before + 50) {
      ASSERT_LT(clock_.Now(), deadline) << workers_[0].Outputs();
    }
  }
  // The number of completed rounds.
  std::uint64_t Rounds() {
    const std::string stats = daemon_.Ask({"stats"}).output;
    const std::size_t line = stats.find("phub_rounds_total");
    if (line == std::string::npos) return 0;
    const std::size_t end = stats.find('\n', line);
    const std::size_t number = stats.rfind(' ', end);
    return std::strtoull(stats.c_str() + number, nullptr, 10);
  }
  // Every worker except `victim` ends with an error that contains these words.
  void ExpectVerdict(int victim, const std::vector<std::string>& words) {
    const TimeNs start = clock_.Now();
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == victim) continue;
      Process& worker = workers_[static_cast<std::size_t>(rank)];
      const auto exit = worker.Wait(std::max<DurationNs>(0, start + kNoticeLimit - clock_.Now()));
      ASSERT_TRUE(exit.has_value()) << "rank " << rank << " hangs: " << worker.Outputs();
      EXPECT_EQ(exit->signal, 0) << worker.Outputs();
      EXPECT_NE(exit->code, 0) << worker.Outputs();
      for (const std::string& word : words) {
        EXPECT_NE(worker.StandardError().find(word), std::string::npos)
            << "rank " << rank << " does not say \"" << word << "\": " << worker.StandardError();
      }
    }
  }
  // No job has memory reserved any more.
  void ExpectMemoryBack() {
    const TimeNs deadline = clock_.Now() + 5 * kSecond;
    std::string answer;
    do {
      answer = daemon_.Ask({"job", "get", "digits", "-o", "json"}).output;
      if (answer.find("\"memory_bytes\": \"0\"") != std::string::npos) return;
    } while (clock_.Now() < deadline);
    ADD_FAILURE() << answer;
  }

  SystemClock clock_;
  DaemonProcess daemon_;
  std::vector<Process> workers_;
};

TEST_F(KillTest, AKilledWorkerIsNamedByEverySurvivor) {
  StartWorkers();
  const std::uint64_t resident_before = daemon_.process().ResidentBytes();
  workers_[2].Signal(SIGKILL);
  ExpectVerdict(2, {"rank 2", "digits", "key"});
  ExpectMemoryBack();
  EXPECT_LE(daemon_.process().ResidentBytes(), resident_before);
  // Expect: a job of the same name can train at once, and the daemon is intact.
  workers_.clear();
  StartWorkers();
  workers_[1].Signal(SIGKILL);
  ExpectVerdict(1, {"rank 1", "digits"});
}

TEST_F(KillTest, ASilentWorkerIsNamedByEverySurvivor) {
  StartWorkers();
  workers_[3].Signal(SIGSTOP);
  ExpectVerdict(3, {"rank 3", "digits", "has been silent on"});
  ExpectMemoryBack();
  workers_[3].Signal(SIGCONT);
  // Expect: the worker learns that another process took its place, and does not hang.
  const auto exit = workers_[3].Wait(kNoticeLimit);
  ASSERT_TRUE(exit.has_value()) << workers_[3].Outputs();
  EXPECT_NE(exit->code, 0);
}

TEST_F(KillTest, AKilledDaemonIsNamedByEveryWorker) {
  StartWorkers();
  daemon_.process().Signal(SIGKILL);
  ExpectVerdict(-1, {daemon_.endpoint(), "digits"});
}

TEST_F(KillTest, AStoppedDaemonIsNamedByEveryWorker) {
  StartWorkers();
  daemon_.process().Signal(SIGSTOP);
  ExpectVerdict(-1, {daemon_.endpoint(), "digits"});
  daemon_.process().Signal(SIGCONT);
}

}  // namespace
}  // namespace phub::process
