// Groups of several racks whose sums an aggregator adds up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/process/training_process.h"
#include "tests/process/wide_groups.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class AggregatedGroups : public WideGroups {
 protected:
  AggregatedGroups() : WideGroups(1) {}
  // Payload of the sums that racks have sent to the aggregator.
  std::uint64_t SummedBytes(const std::string& job) const {
    std::uint64_t bytes = 0;
    const v1::JobInfo info = ShownAt(kRackCount, job);
    for (const v1::ExchangeLink& link : info.exchange().links())
      bytes += link.partial_bytes_received();
    return bytes;
  }
};

TEST_F(AggregatedGroups, HaveTheBitsOfTheirPlansAndAreRemoved) {
  Join("switched", "in-switch");
  ASSERT_EQ(jobs_.size(), kAllRanks);
  Planner plans("in-switch", 1);
  std::uint64_t memory = 0;
  for (int turn = 0; turn < 4; ++turn) {
    std::vector<MadeGroup> made;
    const std::uint64_t before = SummedBytes("switched");
    for (const Ranks& ranks : {Ranks{1, 2, 5}, Ranks{0, 3, 4, 6, 7}}) {
      const auto sums = plans.SumsOf("switched", "pair", plans.Plan({ranks})[0]);
      made.push_back({ranks, Add("pair", ranks), sums});
      ASSERT_EQ(made.back().keys.size(), ranks.size());
    }
    for (int round = 0; round < 3; ++round) ExchangeAll(made, round);
    // Expect: in each of three rounds, all racks but a chunk's home have sent their sum once.
    EXPECT_EQ(SummedBytes("switched") - before, (2 + 3) * 3 * kWideElements * sizeof(float));
    RemoveMade();
    const std::uint64_t left = ShownAt(kRackCount, "switched").memory_bytes();
    if (turn == 0) memory = left;
    EXPECT_EQ(left, memory) << turn;
  }
}

// The job's plan does not use the aggregator, so it does not have the job.
TEST_F(AggregatedGroups, DoNotUseAnAggregatorThatTheJobDoesNotUse) {
  Join("ring", "ring");
  ASSERT_EQ(jobs_.size(), kAllRanks);
  std::vector<Key> keys = Add("pair", {1, 2, 5});
  ASSERT_EQ(keys.size(), 3u);
  Exchange(keys, 2.0f);
  EXPECT_EQ(racks_.Ask(kRackCount, {"job", "list", "-o", "json"}).output.find("ring"),
            std::string::npos);
}

TEST_F(AggregatedGroups, EndWithTheAggregator) {
  Join("ends", "in-switch");
  ASSERT_EQ(jobs_.size(), kAllRanks);
  std::vector<Key> keys = Add("pair", {1, 2, 5});
  ASSERT_EQ(keys.size(), 3u);
  Exchange(keys, 2.0f);
  racks_.daemon(kRackCount).Signal(SIGKILL);
  const Status status = keys[0].PushPull().Wait(kWideWait);
  EXPECT_THAT(ToString(status), AllOf(HasSubstr("aggregator 4 ("), HasSubstr("ends")));
}

}  // namespace
}  // namespace phub::process
