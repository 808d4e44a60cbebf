// The numbers that a core loop counts for a running job, with the scripted clock.
#include "tests/unit/server/core/core_loop_fixture.h"

namespace phub::server {
namespace {

std::uint64_t Rounds(const ShardMetrics& metrics, DurationNs duration) {
  return metrics.round_duration_buckets[RoundDurationBucket(duration)].Get();
}

TEST_F(CoreLoopTest, ARoundsDurationIsFromItsFirstGradientToItsLast) {
  Start(3, 2);
  Push(0, 0, 1, 0, 1.0f);
  clock_.now += 2 * kMillisecond;
  Push(2, 0, 1, 0, 1.0f);
  clock_.now += 5 * kMillisecond;
  Push(1, 0, 1, 0, 1.0f);
  EXPECT_EQ(shard_->metrics.round_duration_ns.Get(), 7u * kMillisecond);
  EXPECT_EQ(Rounds(shard_->metrics, 7 * kMillisecond), 1u);
  EXPECT_EQ(Count(CoreCounter::rounds), 1u);
}

TEST_F(CoreLoopTest, TheLastRankIsTheOneThatWasWaitedFor) {
  Start(3, 2);
  for (std::uint64_t iteration = 1; iteration <= 2; ++iteration) {
    Push(0, 0, iteration, 0, 1.0f);
    clock_.now += kMillisecond;
    Push(1, 0, iteration, 0, 1.0f);
    clock_.now += 4 * kMillisecond;  // caused by rank 2 alone
    Push(2, 0, iteration, 0, 1.0f);
  }
  const RankMetrics* ranks = shard_->metrics.ranks.get();
  EXPECT_EQ(ranks[2].rounds_last.Get(), 2u);
  EXPECT_EQ(ranks[2].straggler_wait_ns.Get(), 8u * kMillisecond);
  EXPECT_EQ(ranks[0].rounds_last.Get() + ranks[1].rounds_last.Get(), 0u);
}

TEST_F(CoreLoopTest, ALostRanksGradientIsNotWaitedForTwice) {
  config_.on_loss = LossPolicy::kWait;
  Start(3, 2);
  Push(0, 0, 1, 0, 1.0f);
  Push(1, 0, 1, 0, 1.0f);
  clock_.now += 30 * kMillisecond;
  // Receive the end of rank 1's lane: two ranks are missing again.
  transport_.Break(lanes_[1], TransportError::kPeerClosed);
  loop_.RunOnce();
  Attach(1);
  Push(1, 0, 1, 0, 1.0f);
  clock_.now += 2 * kMillisecond;
  Push(2, 0, 1, 0, 1.0f);
  EXPECT_EQ(shard_->metrics.ranks[2].straggler_wait_ns.Get(), 2u * kMillisecond);
  EXPECT_EQ(shard_->metrics.round_duration_ns.Get(), 32u * kMillisecond);
}

TEST_F(CoreLoopTest, NobodyIsWaitedForInAJobOfOneRank) {
  Start(1, 2);
  clock_.now += kSecond;
  Push(0, 0, 1, 0, 1.0f);
  EXPECT_EQ(shard_->metrics.ranks[0].rounds_last.Get(), 0u);
  EXPECT_EQ(shard_->metrics.ranks[0].straggler_wait_ns.Get(), 0u);
}

TEST_F(CoreLoopTest, SlotsInUseComeAndGoWithTheRounds) {
  Start(2, 3);
  Push(0, 0, 1, 0, 1.0f);
  Push(0, 1, 1, 1, 1.0f);
  EXPECT_EQ(shard_->metrics.slots_used.Get(), 2u);
  Push(1, 0, 1, 0, 1.0f);
  EXPECT_EQ(shard_->metrics.slots_used.Get(), 1u);
  Push(1, 1, 1, 0, 1.0f);
  EXPECT_EQ(shard_->metrics.slots_used.Get(), 0u);
}

TEST_F(CoreLoopTest, AJobsBytesAreCountedBothWays) {
  Start(2, 3);
  Push(0, 0, 1, 0, 1.0f);
  Push(1, 0, 1, 0, 1.0f);
  const std::uint64_t bytes = 2 * kElements * sizeof(float);
  EXPECT_EQ(shard_->metrics.gradients.Get(), 2u);
  EXPECT_EQ(shard_->metrics.gradient_bytes.Get(), bytes);
  EXPECT_EQ(shard_->metrics.reply_bytes.Get(), bytes);
}

TEST_F(CoreLoopTest, BusyIsTheTimeOfRunsThatHadWork) {
  Start(2, 3);
  loop_.RunOnce();
  const std::uint64_t before = Count(CoreCounter::busy_ns);
  clock_.now += 7 * kMillisecond;  // idle
  loop_.RunOnce();
  EXPECT_EQ(Count(CoreCounter::busy_ns), before);
  Push(0, 0, 1, 0, 1.0f);
  clock_.now += 3 * kMillisecond;  // the duration of that run
  loop_.RunOnce();
  EXPECT_EQ(Count(CoreCounter::busy_ns), before + 3 * kMillisecond);
  clock_.now += kSecond;
  loop_.RunOnce();
  EXPECT_EQ(Count(CoreCounter::busy_ns), before + 3 * kMillisecond);
}

}  // namespace
}  // namespace phub::server
