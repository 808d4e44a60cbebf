// Jobs whose gradients a real phub-aggregator sums on their way to a real daemon, with an optimizer
// there: the bits are those of the same job over tcp, also if the aggregator is killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/process/sum_streams_fixture.h"

namespace phub::process {
namespace {

using ::testing::HasSubstr;

TEST_F(SumStreams, HaveTheBitsOfTcpAlsoIfTheAggregatorIsKilled) {
  Training expected(plain_.endpoint(), Options("job"));
  Training job(daemon_.endpoint(), Options("job"));
  AwaitStreams("job");
  EXPECT_THAT(plain_.Ask({"job", "get", "job"}).output,
              HasSubstr("tcp: the setting sum_aggregator is empty"));
  const auto check = [&](int iterations) {
    expected.Train(iterations);
    for (std::size_t rank = 0; rank < kRanks; ++rank)
      ASSERT_EQ(job.Parameters(rank), expected.Parameters(rank)) << "rank " << rank;
  };
  job.Train(20);
  check(20);
  // Expect: what the daemon receives and sends does not depend on the number of ranks.
  EXPECT_EQ(Stat("phub_sum_block_bytes_total"), 20 * kElements * sizeof(float));
  EXPECT_EQ(Stat("phub_gradient_bytes_total"), 0u);
  EXPECT_EQ(Stat("phub_reply_bytes_total"), 0u);
  const std::uint64_t again = Stat("phub_parameter_blocks_again_total");
  EXPECT_EQ(Stat("phub_parameter_blocks_total") - again, 20 * kBlocks);
  EXPECT_GE(aggregator_.Counter("parameters_forwarded_total"), 20 * kBlocks * kRanks);
  EXPECT_GE(aggregator_.Counter("sums_sent_total"), 20u * 9);

  // Expect: rounds that the aggregator dies with are pushed over tcp.
  aggregator_.process().Signal(SIGSTOP);
  job.Begin();
  Sleep(100 * kMillisecond);
  aggregator_.process().Signal(SIGKILL);
  job.End();
  job.Train(4);
  check(5);
  EXPECT_THAT(Way("job"), HasSubstr("tcp: "));
  EXPECT_EQ(Stat("phub_gradient_bytes_total"), 5 * kRanks * kElements * sizeof(float));

  // Expect: a new aggregator is used again.
  aggregator_.Restart();
  AwaitStreams("job");
  job.Train(10);
  check(10);
  EXPECT_EQ(Stat("phub_sum_block_bytes_total"), 30 * kElements * sizeof(float));
}

TEST_F(SumStreams, JobsThatCannotHaveOneSayWhy) {
  Training shared(daemon_.endpoint(), Options("shared", TransportChoice::kSharedMemory));
  EXPECT_THAT(AwaitWay("shared", "the lane of"), HasSubstr("tcp: the lane of rank 0 is shm"));
  JobOptions whole = Options("whole");
  whole.apply = Apply::kIteration;
  Training iterations(daemon_.endpoint(), whole);
  EXPECT_THAT(Way("whole"), HasSubstr("tcp: the job has apply=iteration"));
}

}  // namespace
}  // namespace phub::process
