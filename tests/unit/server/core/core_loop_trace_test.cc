// Traces of rounds: what a core loop records about each chunk, and when.
#include <bit>
#include <vector>

#include "server/core/round_trace.h"
#include "tests/unit/server/core/core_loop_pool_fixture.h"
#include "tests/unit/server/core/core_loop_racks_fixture.h"

namespace phub::server {
namespace {

using Work = TracedSpan::Work;

std::vector<TracedSpan> SpansOf(RoundTrace& trace) {
  std::vector<TracedSpan> spans;
  for (TracedSpan span; trace.spans.TryPop(span);) spans.push_back(span);
  return spans;
}

class TraceTest : public CoreLoopTest {
 protected:
  void Trace(RoundTrace* trace) {
    Order({.kind = Command::Kind::kTraceRounds, .shard = shard_.get(), .trace = trace});
  }
  void Decide(std::uint32_t rank, std::uint64_t number, bool skip) {
    wire::MessageHeader header;
    header.kind = wire::MessageKind::kDecision;
    header.incarnation = config_.incarnation;
    header.membership_epoch = config_.membership_epoch;
    header.iteration = Iteration{number};
    header.value_bits = std::bit_cast<std::uint64_t>(1.0);
    if (skip) header.flags = wire::kFlagSkip;
    transport_.Deliver(lanes_[rank], header);
    for (int i = 0; i < 4; ++i) loop_.RunOnce();
  }
};

TEST_F(TraceTest, HasTheGradientsTheUpdateAndTheRepliesOfEachRound) {
  Start(3, 2);
  RoundTrace trace(64);
  Trace(&trace);
  for (std::uint64_t iteration = 1; iteration <= 2; ++iteration) {
    const TimeNs first = clock_.now;
    Push(2, 0, iteration, 0, 4.0f);
    clock_.now += 30;
    Push(0, 0, iteration, 0, 1.0f);
    EXPECT_TRUE(SpansOf(trace).empty());
    clock_.now += 20;
    Push(1, 0, iteration, 0, 2.0f);
    const std::vector<TracedSpan> spans = SpansOf(trace);
    ASSERT_EQ(spans.size(), 3u);
    EXPECT_EQ(spans[0].work, Work::kGather);
    EXPECT_EQ(spans[0].begin, first);
    EXPECT_EQ(spans[0].end, first + 50);
    EXPECT_EQ(spans[0].rank, 1);
    EXPECT_EQ(spans[1].work, Work::kUpdate);
    EXPECT_EQ(spans[2].work, Work::kReply);
    EXPECT_EQ(spans[1].end, spans[2].begin);
    for (const TracedSpan& span : spans) {
      EXPECT_EQ(span.round, iteration);
      EXPECT_EQ(span.iteration, iteration - 1);
      EXPECT_EQ(span.key, KeyIndex{0});
      EXPECT_EQ(span.chunk, ChunkIndex{0});
      EXPECT_EQ(span.operation, wire::RoundOperation::kReduce);
      EXPECT_FALSE(span.skipped);
    }
  }
  Trace(nullptr);
  for (std::uint32_t rank = 0; rank < 3; ++rank) Push(rank, 0, 3, 0, 1.0f);
  EXPECT_TRUE(SpansOf(trace).empty());
}

TEST_F(TraceTest, SeparatesSumAndUpdateIfWorkersDecide) {
  config_.apply_iteration = true;
  Start(2, 4, Optimizer::kSgd, Reduction::kSum, /*chunks=*/1);
  RoundTrace trace(64);
  Trace(&trace);
  for (const bool skip : {false, true}) {
    const std::uint64_t round = skip ? 2 : 1;
    for (std::uint32_t rank = 0; rank < 2; ++rank) Push(rank, 0, round, 0, 1.0f);
    std::vector<TracedSpan> spans = SpansOf(trace);
    ASSERT_EQ(spans.size(), 2u);
    EXPECT_EQ(spans[0].work, Work::kGather);
    EXPECT_EQ(spans[1].work, Work::kSum);
    clock_.now += 100;
    for (std::uint32_t rank = 0; rank < 2; ++rank) Decide(rank, round, skip);
    spans = SpansOf(trace);
    ASSERT_EQ(spans.size(), 2u);
    EXPECT_EQ(spans[0].work, Work::kUpdate);
    EXPECT_EQ(spans[0].begin, clock_.now);
    EXPECT_EQ(spans[0].skipped, skip);
    EXPECT_EQ(spans[1].work, Work::kReply);
    EXPECT_EQ(spans[1].round, round);
  }
}

TEST_F(TraceTest, DropsAndCountsWhatFindsNoRoom) {
  Start(2, 2);
  RoundTrace trace(4);
  Trace(&trace);
  for (std::uint64_t iteration = 1; iteration <= 3; ++iteration) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) Push(rank, 0, iteration, 0, 1.0f);
  }
  // Expect: the oldest spans are kept, and rounds go on.
  EXPECT_EQ(trace.dropped.load(), 5u);
  const std::vector<TracedSpan> spans = SpansOf(trace);
  ASSERT_EQ(spans.size(), 4u);
  EXPECT_EQ(spans[3].work, Work::kGather);
  EXPECT_EQ(spans[3].round, 2u);
  EXPECT_EQ(Replies().size(), 6u);
}

class TracePoolTest : public PoolTest {};

TEST_F(TracePoolTest, SaysWhatARoundOfAPoolIs) {
  StartPool();
  RoundTrace trace(64);
  Order({.kind = Command::Kind::kTraceRounds, .shard = shard_.get(), .trace = &trace});
  const std::vector<float> values(kElements, 1.0f);
  const wire::PoolRound two{.elements = 2 * kElements, .sequence = 7};
  for (std::uint32_t chunk = 0; chunk < 2; ++chunk) {
    for (std::uint32_t rank = 0; rank < 2; ++rank)
      PushPooled(rank, Pooled(chunk, 1, chunk, ElementType::kF32, two), values);
  }
  const wire::PoolRound one{.elements = kElements, .sequence = 8};
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    PushPooled(rank, Pooled(0, 2, 0, ElementType::kF32, one), values);
  const std::vector<TracedSpan> spans = SpansOf(trace);
  ASSERT_EQ(spans.size(), 9u);
  for (std::size_t i = 0; i < spans.size(); ++i) {
    EXPECT_EQ(spans[i].work, i % 3 == 0   ? Work::kGather
                             : i % 3 == 1 ? Work::kUpdate
                                          : Work::kReply);
    EXPECT_EQ(spans[i].operation, wire::RoundOperation::kPool);
    EXPECT_EQ(spans[i].pool.round, i < 6 ? two : one);
    EXPECT_EQ(spans[i].pool.type, ElementType::kF32);
    EXPECT_EQ(spans[i].chunk.value, i / 3 == 1 ? 1u : 0u);
    EXPECT_EQ(spans[i].round, i < 6 ? 1u : 2u);
  }
}

class TraceRacksTest : public CoreLoopRacks {};

TEST_F(TraceRacksTest, HaveTheSumOfThisRackAndTheUpdateThatCameBack) {
  StartRack(1);
  RoundTrace trace(64);
  Order({.kind = Command::Kind::kTraceRounds, .shard = shard_.get(), .trace = &trace});
  const std::uint32_t chunk = ChunkWithHome(2);
  Push(0, chunk, 1, 0, 3);
  Push(1, chunk, 1, 0, 4);
  std::vector<TracedSpan> spans = SpansOf(trace);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].work, Work::kGather);
  EXPECT_EQ(spans[0].rank, config_.rank_base + 1);
  EXPECT_EQ(spans[1].work, Work::kSum);
  EXPECT_EQ(spans[1].chunk, ChunkIndex{chunk});
  clock_.now += 700;
  transport_.Deliver(peers_[2], FromPeer(chunk, 1, 1), Filled(-5));
  loop_.RunOnce();
  spans = SpansOf(trace);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].work, Work::kUpdate);
  EXPECT_EQ(spans[0].begin, clock_.now);
  EXPECT_EQ(spans[0].round, 1u);
  EXPECT_EQ(spans[1].work, Work::kReply);
}

}  // namespace
}  // namespace phub::server
