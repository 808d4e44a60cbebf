// A rank that is late in the middle of training: the others warn and name it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/process/daemon_process.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr DurationNs kPatience = 60 * kSecond;

Process StartRank(const DaemonProcess& daemon, int rank, int pause_ms) {
  return Process::Start(
      PHUB_TEST_TRAINER,
      {"--endpoint", daemon.endpoint(), "--job", "digits", "--rank", std::to_string(rank),
       "--world-size", "3", "--iterations", "1000000", "--pause-ms", std::to_string(pause_ms)});
}

TEST(LateRank, IsNamedByTheRanksThatWaitForIt) {
  const DaemonProcess daemon({"--liveness-timeout", "10m"});
  ASSERT_FALSE(daemon.endpoint().empty());
  std::vector<Process> ranks;
  for (const int rank : {0, 1}) ranks.push_back(StartRank(daemon, rank, 0));
  ranks.push_back(StartRank(daemon, 2, 500));
  // Control group: a rank that is always slower than the others is usual.
  ASSERT_TRUE(ranks[0].WaitForOutput("iteration 8\n", kPatience)) << ranks[0].Outputs();
  for (const Process& rank : ranks) EXPECT_THAT(rank.StandardError(), Not(HasSubstr("round_late")));

  ranks[2].Signal(SIGSTOP);
  for (const int rank : {0, 1}) {
    SCOPED_TRACE(rank);
    EXPECT_TRUE(ranks[rank].WaitForOutput("event=round_late", kPatience)) << ranks[rank].Outputs();
    EXPECT_THAT(ranks[rank].StandardError(), AllOf(HasSubstr("rank=" + std::to_string(rank)),
                                                   HasSubstr("waiting_for=\"rank 2 ("),
                                                   HasSubstr("key="), HasSubstr("usual_s=0.5")));
  }
  // Expect: it goes on as if nothing had happened, and blames nobody.
  ranks[2].Signal(SIGCONT);
  EXPECT_TRUE(ranks[0].WaitForOutput("iteration 11\n", kPatience)) << ranks[0].Outputs();
  EXPECT_THAT(ranks[2].StandardError(), Not(HasSubstr("round_late")));
}

}  // namespace
}  // namespace phub::process
