// Pooled keys: a round states its own type, reduction and length, and covers a prefix of the key.
#include "tests/unit/server/core/core_loop_pool_fixture.h"

namespace phub::server {
namespace {

TEST_F(PoolTest, ARoundHasItsOwnTypeReductionAndLength) {
  StartPool();
  const wire::PoolRound sum{.elements = 10, .sequence = 0, .reduction = numeric::Reduction::kSum};
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    PushPooled(rank, Pooled(0, 1, 0, ElementType::kF32, sum), std::vector<float>(10, 1.5f));
  auto replies = Replies();
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].header.type, ElementType::kF32);
  EXPECT_EQ(replies[0].payload, std::vector<float>(10, 3.0f));

  // Expect: the next round of the same chunk is a maximum of one i64.
  const wire::PoolRound max{.elements = 1, .sequence = 1, .reduction = numeric::Reduction::kMax};
  PushPooled(0, Pooled(0, 2, 0, ElementType::kI64, max), std::vector<std::int64_t>{7});
  PushPooled(1, Pooled(0, 2, 0, ElementType::kI64, max), std::vector<std::int64_t>{9});
  replies = Replies();
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].header.type, ElementType::kI64);
  EXPECT_EQ(replies[0].header.payload_bytes, 8u);
  const std::vector<std::byte> result(parameters_[0].begin(), parameters_[0].begin() + 8);
  EXPECT_EQ(result, BytesOf(std::vector<std::int64_t>{9}));
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

TEST_F(PoolTest, ChunksThatARoundDoesNotCoverKeepTheirIteration) {
  StartPool();
  const wire::PoolRound short_round{.elements = kElements, .sequence = 0, .reduction = {}};
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    PushPooled(rank, Pooled(0, 1, 0, ElementType::kF32, short_round), Filled(1.0f));
  EXPECT_EQ(Replies().size(), 2u);
  const wire::PoolRound long_round{.elements = kElements + 3, .sequence = 1, .reduction = {}};
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    PushPooled(rank, Pooled(0, 2, 0, ElementType::kF32, long_round), Filled(2.0f));
    PushPooled(rank, Pooled(1, 1, 1, ElementType::kF32, long_round), std::vector<float>(3, 5.0f));
  }
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 4u);
  EXPECT_EQ(replies[0].payload, Filled(4.0f));
  EXPECT_EQ(replies[2].payload, std::vector<float>(3, 10.0f));
  EXPECT_EQ(replies[2].header.iteration.value, 1u);
}

// Half-precision sums are folded in f32, which needs twice the chunk's bytes.
TEST_F(PoolTest, AFoldedSumOfHalvesFitsTheAccumulator) {
  StartPool(/*slots=*/1);
  constexpr std::uint32_t kHalves = kPoolChunkBytes / 2;
  const wire::PoolRound sum{
      .elements = kHalves, .sequence = 0, .reduction = numeric::Reduction::kSum};
  // 1.0 as bf16. The only slot of rank 0 is full, so its gradient is folded.
  const std::vector<std::uint16_t> ones(kHalves, 0x3f80);
  PushPooled(0, Pooled(0, 1, 0, ElementType::kBf16, sum), ones);
  EXPECT_EQ(Posted(wire::MessageKind::kCredit).size(), 1u);
  PushPooled(1, Pooled(0, 1, 0, ElementType::kBf16, sum), ones);
  ASSERT_EQ(Replies().size(), 2u);
  const std::vector<std::byte> result(parameters_[0].begin(),
                                      parameters_[0].begin() + kPoolChunkBytes);
  EXPECT_EQ(result, BytesOf(std::vector<std::uint16_t>(kHalves, 0x4000)));
}

TEST_F(PoolTest, RanksThatDifferInAnyAttributeAreNamedAtTheFirstChunk) {
  const wire::PoolRound agreed{
      .elements = kElements, .sequence = 4, .reduction = numeric::Reduction::kSum};
  StartPool();
  PushPooled(0, Pooled(0, 1, 0, ElementType::kF32, agreed), Filled(1.0f));
  const auto expect_refused = [&](ElementType type, const wire::PoolRound& other) {
    PushPooled(1, Pooled(0, 1, 0, type, other), Filled(1.0f));
    const Event fault = Next(Event::Kind::kFault);
    EXPECT_EQ(fault.code, FaultCode::kRoundMismatch);
    EXPECT_EQ(fault.source, Rank{1});
    EXPECT_EQ(fault.other, Rank{0});
    EXPECT_EQ(shard_->conflict.source.pool, other);
    EXPECT_EQ(shard_->conflict.source.type, type);
    EXPECT_EQ(shard_->conflict.other.pool, agreed);
    EXPECT_EQ(shard_->conflict.other.type, ElementType::kF32);
    shard_->faulted = false;
    shard_->conflict = {};
    Attach(1);
  };
  expect_refused(ElementType::kI32, agreed);
  wire::PoolRound other = agreed;
  other.reduction = numeric::Reduction::kMin;
  expect_refused(ElementType::kF32, other);
  other = agreed;
  other.elements = kElements + 1;  // two chunks against one
  expect_refused(ElementType::kF32, other);
  other = agreed;
  other.sequence = 5;
  expect_refused(ElementType::kF32, other);
}

TEST_F(PoolTest, RoundsThatDoNotFitAreRefused) {
  StartPool();
  const auto expect = [&](FaultCode code, const wire::MessageHeader& header,
                          const std::vector<float>& values) {
    PushPooled(0, header, values);
    EXPECT_EQ(FaultOf(), code);
    shard_->faulted = false;
    Attach(0);
  };
  const wire::PoolRound one{.elements = 1, .sequence = 0, .reduction = numeric::Reduction::kSum};
  const std::vector<float> value(1, 1.0f);
  // Longer than the capacity, by one element; a number that overflows; no element.
  for (const std::uint64_t elements :
       {std::uint64_t{4 * kElements + 1}, UINT64_MAX, UINT64_MAX / 4})
    expect(FaultCode::kPayloadSize, Pooled(0, 1, 0, ElementType::kF32, {.elements = elements}),
           Filled(1.0f));
  expect(FaultCode::kPayloadSize, Pooled(0, 1, 0, ElementType::kF32, {.elements = 0}), {});
  expect(FaultCode::kPayloadSize, Pooled(1, 1, 0, ElementType::kF32, one), value);  // not covered
  expect(FaultCode::kPayloadSize, Pooled(0, 1, 0, ElementType::kF32, one), Filled(1.0f));
  wire::PoolRound mean = one;
  mean.reduction = numeric::Reduction::kMean;
  expect(FaultCode::kType, Pooled(0, 1, 0, ElementType::kI32, mean), value);
  wire::MessageHeader ordinary = Gradient(0, 1, 0);
  ordinary.type = ElementType::kU8;
  expect(FaultCode::kUnexpectedKind, ordinary, Filled(1.0f));
  transport_.DeliverHyperParameters(lanes_[0], Gradient(0, 0, 0), {});
  EXPECT_EQ(FaultOf(), FaultCode::kHyperParametersRange);
}

TEST_F(PoolTest, ARepeatedPushIsAnsweredWithItsOwnRoundWhileTheNextHasBegun) {
  StartPool();
  const wire::PoolRound first{.elements = 10, .sequence = 0, .reduction = numeric::Reduction::kSum};
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    PushPooled(rank, Pooled(0, 1, 0, ElementType::kF32, first), std::vector<float>(10, 1.0f));
  EXPECT_EQ(Replies().size(), 2u);
  const wire::PoolRound second{.elements = 2, .sequence = 1, .reduction = numeric::Reduction::kSum};
  PushPooled(1, Pooled(0, 2, 0, ElementType::kF64, second), std::vector<double>(2, 8.0));
  PushPooled(0, Pooled(0, 1, 0, ElementType::kF32, first), std::vector<float>(10, 1.0f));
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].header.type, ElementType::kF32);
  EXPECT_EQ(replies[0].payload, std::vector<float>(10, 2.0f));
  // Expect: with other attributes it is not the push of that round.
  PushPooled(0, Pooled(0, 1, 0, ElementType::kF32, second), std::vector<float>(2, 1.0f));
  EXPECT_EQ(FaultOf(), FaultCode::kRoundMismatch);
  EXPECT_FALSE(shard_->conflict.other.is_known);
}

TEST_F(PoolTest, AnOrdinaryKeyHasNoPooledRounds) {
  Start(2, 1);
  PushPooled(0, Pooled(0, 1, 0, ElementType::kF32, {.elements = kElements}), Filled(1.0f));
  EXPECT_EQ(FaultOf(), FaultCode::kUnexpectedKind);
}

}  // namespace
}  // namespace phub::server
