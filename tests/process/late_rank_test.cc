// A rank that is late in the middle of training: the others warn and name it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/process/daemon_process.h"
#include "tests/process/rack_process.h"
#include "tests/process/training_process.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr DurationNs kPatience = 60 * kSecond;

Process StartRank(const std::string& endpoint, std::uint32_t rank, std::uint32_t world_size,
                  int pause_ms, const std::string& plan = "") {
  return StartTrainer({.endpoint = endpoint,
                       .job = "digits",
                       .rank = rank,
                       .world_size = world_size,
                       .iterations = 1000000,
                       .more = {"--pause-ms", std::to_string(pause_ms), "--plan", plan}});
}

TEST(LateRank, IsNamedByTheRanksThatWaitForIt) {
  const DaemonProcess daemon({"--liveness-timeout", "10m"});
  ASSERT_FALSE(daemon.endpoint().empty());
  std::vector<Process> ranks;
  for (const std::uint32_t rank : {0u, 1u}) {
    ranks.push_back(StartRank(daemon.endpoint(), rank, 3, 0));
  }
  ranks.push_back(StartRank(daemon.endpoint(), 2, 3, 500));
  // Control group: a rank that is always slower than the others is usual.
  ASSERT_TRUE(WaitForIteration(ranks[0], 8, kPatience)) << ranks[0].Outputs();
  for (const Process& rank : ranks) EXPECT_THAT(rank.StandardError(), Not(HasSubstr("round_late")));

  ranks[2].Signal(SIGSTOP);
  for (const int rank : {0, 1}) {
    SCOPED_TRACE(rank);
    EXPECT_TRUE(ranks[rank].WaitForOutput("event=round_late", kPatience)) << ranks[rank].Outputs();
    EXPECT_THAT(
        ranks[rank].StandardError(),
        AllOf(HasSubstr("rank=" + std::to_string(rank)), HasSubstr("waiting_for=\"rank 2 ("),
              HasSubstr("key="), ContainsRegex("usual_s=(0\\.[5-9]|[1-9])")));
  }
  // Expect: it goes on as if nothing had happened, and blames nobody.
  ranks[2].Signal(SIGCONT);
  EXPECT_TRUE(WaitForIteration(ranks[0], 11, kPatience)) << ranks[0].Outputs();
  EXPECT_THAT(ranks[2].StandardError(), Not(HasSubstr("round_late")));
}

// No rank of the late rank's rack waits for it.
TEST(LateRank, IsNamedByTheRanksOfOtherRacks) {
  RackProcess racks(2, {"--cores", "1", "--pin", "off", "--liveness-timeout", "10m"},
                    RackProcess::Kind::kManyRacks);
  ASSERT_TRUE(racks.serving()) << racks.Outputs();
  std::vector<Process> ranks;
  for (const std::uint32_t rank : {0u, 1u}) {
    ranks.push_back(StartRank(racks.endpoint(rank), rank, 2, 200, "ring"));
  }
  ASSERT_TRUE(WaitForIteration(ranks[0], 8, kPatience))
      << ranks[0].Outputs() << ranks[1].Outputs() << racks.Outputs();

  ranks[1].Signal(SIGSTOP);
  EXPECT_TRUE(ranks[0].WaitForOutput("event=round_late", kPatience))
      << ranks[0].Outputs() << racks.Outputs();
  EXPECT_THAT(ranks[0].StandardError(), AllOf(HasSubstr("waiting_for=\"rank 1 ("),
                                              ContainsRegex("usual_s=(0\\.[2-9]|[1-9])")));
  EXPECT_THAT(racks.Ask(0, {"job", "stalls", "digits"}).output, HasSubstr("other racks"));
  ranks[1].Signal(SIGCONT);
  EXPECT_TRUE(WaitForIteration(ranks[0], 11, kPatience)) << ranks[0].Outputs();
  EXPECT_THAT(ranks[1].StandardError(), Not(HasSubstr("round_late")));
}

}  // namespace
}  // namespace phub::process
