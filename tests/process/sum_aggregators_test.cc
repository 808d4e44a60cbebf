// A job whose core loops share two real phub-aggregators: both sum, the bits are those of the same
// job over tcp, and if one aggregator is lost, only the gradients of its core loop go over tcp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/process/sum_streams_fixture.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class SumAggregators : public SumStreams {
 protected:
  SumAggregators() : SumStreams(/*two_aggregators=*/true) {}
  // Lines of `phubctl job get` for a core loop whose stream is open, and for one that lacks its
  // aggregator.
  static ::testing::Matcher<std::string> Uses(AggregatorProcess& each) {
    return ContainsRegex("aggregator 127.0.0.1:[0-9]+ \\(" + each.control() + "\\)");
  }
  static ::testing::Matcher<std::string> Lacks(AggregatorProcess& each) {
    return ContainsRegex("tcp: [^\n]* at " + each.control());
  }
  static std::uint64_t Sums(AggregatorProcess& each) { return each.Counter("sums_sent_total"); }
};

void ExpectSameParameters(const Training& job, const Training& expected) {
  for (std::size_t rank = 0; rank < kRanks; ++rank)
    ASSERT_EQ(job.Parameters(rank), expected.Parameters(rank)) << "rank " << rank;
}

TEST_F(SumAggregators, BothSumAndTheLossOfOneConcernsOnlyItsCoreLoop) {
  Training expected(plain_.endpoint(), Options("job"));
  Training job(daemon_.endpoint(), Options("job"));
  const auto check = [&](int iterations) {
    expected.Train(iterations);
    ExpectSameParameters(job, expected);
  };
  AwaitStreams("job");
  EXPECT_THAT(Way("job"), AllOf(Uses(aggregator_), Uses(*second_)));
  job.Train(20);
  ASSERT_NO_FATAL_FAILURE(check(20));
  // Expect: all gradients were summed, each by one of the two.
  EXPECT_EQ(Stat("phub_sum_block_bytes_total"), 20 * kElements * sizeof(float));
  EXPECT_EQ(Stat("phub_gradient_bytes_total"), 0u);
  const std::uint64_t sums = Sums(aggregator_);
  EXPECT_GE(sums, 20u);
  EXPECT_GE(Sums(*second_), 20u);
  EXPECT_GE(sums + Sums(*second_), 20 * kBlocks);

  // Expect: rounds that the second one dies with are pushed over tcp, and the first one sums on.
  second_->process().Signal(SIGSTOP);
  job.Begin();
  Sleep(100 * kMillisecond);
  second_->process().Signal(SIGKILL);
  ASSERT_NO_FATAL_FAILURE(job.End());
  job.Train(4);
  ASSERT_NO_FATAL_FAILURE(check(5));
  EXPECT_THAT(Way("job"), AllOf(Uses(aggregator_), Lacks(*second_)));
  EXPECT_GE(Sums(aggregator_), sums + 5);
  const std::uint64_t over_tcp = Stat("phub_gradient_bytes_total") / kRanks;
  EXPECT_GT(over_tcp, 0u);
  EXPECT_EQ(Stat("phub_sum_block_bytes_total"), 25 * kElements * sizeof(float) - over_tcp);

  // Expect: a new process in its place is used again.
  second_->Restart();
  AwaitStreams("job");
  EXPECT_THAT(Way("job"), AllOf(Uses(aggregator_), Uses(*second_)));
  job.Train(10);
  ASSERT_NO_FATAL_FAILURE(check(10));
  EXPECT_EQ(Stat("phub_gradient_bytes_total") / kRanks, over_tcp);
  EXPECT_GE(Sums(*second_), 10u);
}

TEST_F(SumAggregators, AJobStartsWithoutOneOfThem) {
  second_->process().Signal(SIGKILL);
  Training expected(plain_.endpoint(), Options("late"));
  Training late(daemon_.endpoint(), Options("late"));
  EXPECT_THAT(AwaitWay("late", "does not answer at " + second_->control()),
              HasSubstr("tcp: phub-aggregator does not answer at " + second_->control()));
  EXPECT_THAT(AwaitWay("late", "aggregator 127.0.0.1:"), Uses(aggregator_));
  late.Train(10);
  expected.Train(10);
  ExpectSameParameters(late, expected);
  EXPECT_GT(Stat("phub_sum_block_bytes_total"), 0u);
  EXPECT_GT(Stat("phub_gradient_bytes_total"), 0u);
}

}  // namespace
}  // namespace phub::process
