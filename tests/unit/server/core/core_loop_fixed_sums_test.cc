// Jobs with sum=fixed: rounds have the bits of the definition, in any order of arrival, also if
// gradients had to leave their slots; a number that is not finite is found with its rank.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/support/fixed_sum_reference.h"
#include "tests/unit/server/core/core_loop_fixture.h"

namespace phub::server {
namespace {

constexpr float kQuietNan = std::numeric_limits<float>::quiet_NaN();

class FixedSumsTest : public CoreLoopTest {
 protected:
  using Floats = std::vector<float>;
  void StartWith(std::uint32_t ranks, std::uint32_t slots, Reduction reduction = Reduction::kSum) {
    config_.sum_block = 24;  // 64 elements: two whole blocks and a partial one
    Start(ranks, slots, Optimizer::kNone, reduction);
  }
  // Sums of these as f32 depend on the order.
  static Floats GradientOf(std::uint32_t rank, std::uint32_t chunk) {
    Floats values(kElements);
    for (std::uint32_t i = 0; i < kElements; ++i) {
      values[i] = static_cast<float>(rank + 1) * 0.1f + static_cast<float>(i) / 7.0f +
                  static_cast<float>(chunk) * 1e-3f;
      if (i % 3 == rank % 3) values[i] *= -1e4f;
    }
    return values;
  }
  void PushValues(std::uint32_t rank, std::uint32_t chunk, std::uint32_t slot, const Floats& values,
                  std::uint64_t iteration = 1) {
    transport_.Deliver(lanes_[rank], Gradient(chunk, iteration, slot), values);
    loop_.RunOnce();
  }
  Floats Expected(std::uint32_t chunk) const {
    std::vector<Floats> gradients;
    for (std::uint32_t rank = 0; rank < config_.world_size; ++rank) {
      gradients.push_back(GradientOf(rank, chunk));
    }
    return oracle::SumInFixedPoint(gradients, config_.sum_block);
  }
};

TEST_F(FixedSumsTest, HaveTheSameBitsInAnyOrderOfArrival) {
  StartWith(3, 4);
  for (const auto& order : {std::array{0u, 1u, 2u}, {2u, 1u, 0u}, {1u, 2u, 0u}}) {
    const std::uint64_t iteration = shard_->chunks()[0]->applied.value + 1;
    for (const std::uint32_t rank : order) PushValues(rank, 0, 0, GradientOf(rank, 0), iteration);
    const auto replies = Replies();
    ASSERT_EQ(replies.size(), 3u);
    EXPECT_EQ(replies[0].payload, Expected(0));
  }
}

TEST_F(FixedSumsTest, OfGradientsThatHadToLeaveTheirSlots) {
  StartWith(3, 1);
  // The ranks push chunks in different orders with one slot each.
  PushValues(0, 1, 0, GradientOf(0, 1));
  PushValues(1, 0, 0, GradientOf(1, 0));
  PushValues(0, 0, 0, GradientOf(0, 0));  // rank 1's gradient of chunk 0 leaves its slot, too
  ASSERT_EQ(Posted(wire::MessageKind::kCredit).size(), 3u);
  EXPECT_EQ(shard_->chunks()[0]->folded_count, 2u);
  EXPECT_EQ(shard_->chunks()[1]->folded_count, 1u);
  PushValues(1, 1, 0, GradientOf(1, 1));
  PushValues(2, 0, 0, GradientOf(2, 0));
  const auto first = Replies();
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first[0].payload, Expected(0));
  PushValues(2, 1, 0, GradientOf(2, 1));
  const auto second = Replies();
  ASSERT_EQ(second.size(), 3u);
  EXPECT_EQ(second[0].payload, Expected(1));
}

TEST_F(FixedSumsTest, AMeanDividesTheSum) {
  StartWith(3, 2, Reduction::kMean);
  for (std::uint32_t rank = 0; rank < 3; ++rank) PushValues(rank, 2, 0, GradientOf(rank, 2));
  Floats expected = Expected(2);
  for (float& value : expected) value /= 3.0f;
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 3u);
  EXPECT_EQ(replies[0].payload, expected);
}

TEST_F(FixedSumsTest, ANanMakesItsBlockNanAndItsRankIsNamed) {
  StartWith(3, 1);
  Floats bad = GradientOf(0, 0);
  bad[30] = kQuietNan;
  PushValues(0, 0, 0, bad);  // leaves its slot at once, so it is not staged when it is found
  EXPECT_EQ(shard_->chunks()[0]->folded_count, 1u);
  EXPECT_EQ(Next(Event::Kind::kNonFinite).kind, Event::Kind::kNone) << "there is no sum yet";
  PushValues(1, 0, 0, GradientOf(1, 0));
  PushValues(2, 0, 0, GradientOf(2, 0));
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 3u);
  const Floats& sum = replies[0].payload;
  const Floats expected = Expected(0);
  for (std::uint32_t i = 0; i < kElements; ++i) {
    const bool in_block = i >= 24 && i < 48;
    EXPECT_EQ(std::isnan(sum[i]), in_block) << i;
    if (!in_block) {
      EXPECT_EQ(sum[i], expected[i]) << i;
    }
  }
  EXPECT_EQ(Next(Event::Kind::kNonFinite).source, Rank{0});
  EXPECT_EQ(shard_->metrics.nonfinite_sums.Get(), 1u);
  EXPECT_EQ(shard_->metrics.nonfinite_gradients.Get(), 1u);
}

TEST_F(FixedSumsTest, RejectEndsTheJob) {
  config_.screening = Screening::kReject;
  StartWith(2, 2);
  Floats bad = GradientOf(1, 0);
  bad[0] = -std::numeric_limits<float>::infinity();
  PushValues(0, 0, 0, GradientOf(0, 0));
  PushValues(1, 0, 0, bad);
  EXPECT_TRUE(Replies().empty());
  const Event event = Next(Event::Kind::kFault);
  EXPECT_EQ(event.code, FaultCode::kNonFinite);
  EXPECT_EQ(event.source, Rank{1});
}

TEST_F(FixedSumsTest, OfIntegersAreFoldedAsAlways) {
  key_.type = key_.gradient_type = key_.parameter_type = ElementType::kI32;
  StartWith(2, 2);
  EXPECT_EQ(shard_->keys()[0]->sum_block, 0u);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    wire::MessageHeader header = Gradient(0, 1, 0);
    header.type = ElementType::kI32;
    const Floats bits(kElements, std::bit_cast<float>(std::numeric_limits<std::int32_t>::max()));
    transport_.Deliver(lanes_[rank], header, bits);
    loop_.RunOnce();
  }
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(std::bit_cast<std::int32_t>(replies[0].payload[5]), -2);
}

// A whole iteration is summed first, which frees the slots, and applied after the decision.
TEST_F(FixedSumsTest, OfWholeIterations) {
  config_.apply_iteration = true;
  StartWith(3, 1);
  for (std::uint32_t chunk = 0; chunk < 4; ++chunk) {
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      PushValues(rank, chunk, 0, GradientOf(rank, chunk));
    }
  }
  ASSERT_EQ(shard_->iteration.summed_count, 4u);
  for (std::uint32_t chunk = 0; chunk < 4; ++chunk) {
    const Floats expected = Expected(chunk);
    EXPECT_EQ(std::memcmp(shard_->chunks()[chunk]->accumulator, expected.data(),
                          kElements * sizeof(float)),
              0);
  }
}

TEST_F(FixedSumsTest, MemoryForCopiesIsPartOfTheReservation) {
  Start(3, 1);
  const std::uint64_t before = KeyBatchBytes(config_, {&key_, 1});
  config_.sum_block = 24;
  EXPECT_EQ(KeyBatchBytes(config_, {&key_, 1}) - before, 4 * 2 * kElements * sizeof(float));
}

}  // namespace
}  // namespace phub::server
