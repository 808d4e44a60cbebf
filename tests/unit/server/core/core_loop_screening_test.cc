// The core loop's handling of sums that are not finite.
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/unit/server/core/core_loop_fixture.h"

namespace phub::server {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class ScreeningTest : public CoreLoopTest {
 protected:
  void StartWith(Screening screening, std::uint32_t ranks, std::uint32_t slots) {
    config_.screening = screening;
    Start(ranks, slots, Optimizer::kSgd);
  }
  std::uint64_t sums() const { return shard_->metrics.nonfinite_sums.Get(); }
  std::uint64_t gradients() const { return shard_->metrics.nonfinite_gradients.Get(); }
};

TEST_F(ScreeningTest, ReportCountsTellsOnceAndAppliesTheSumAsItIs) {
  StartWith(Screening::kReport, 3, 4);
  Push(0, 1, 1, 0, 1.0f);
  Push(1, 1, 1, 0, kNan);
  Push(2, 1, 1, 0, kInfinity);
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 3u);
  EXPECT_TRUE(std::isnan(replies[0].payload[0]));
  const Event event = Next(Event::Kind::kNonFinite);
  EXPECT_EQ(event.source, Rank{1});
  EXPECT_EQ(event.key, KeyIndex{0});
  EXPECT_EQ(event.iteration, Iteration{1});
  EXPECT_EQ(sums(), 1u);
  EXPECT_EQ(gradients(), 2u);
  // Another one is counted, but not reported.
  Push(0, 2, 1, 1, kNan);
  Push(1, 2, 1, 1, 1.0f);
  Push(2, 2, 1, 1, 1.0f);
  EXPECT_EQ(Replies().size(), 3u);
  EXPECT_EQ(Next(Event::Kind::kNonFinite).kind, Event::Kind::kNone);
  EXPECT_EQ(sums(), 2u);
  EXPECT_EQ(gradients(), 3u);
  EXPECT_TRUE(shard_->live());
}

TEST_F(ScreeningTest, RejectIsAFaultThatNamesRankAndKeyAndNobodyIsAnswered) {
  StartWith(Screening::kReject, 2, 4);
  Push(0, 3, 1, 0, 1.0f);
  Push(1, 3, 1, 0, kInfinity);
  EXPECT_TRUE(Replies().empty());
  const Event event = Next(Event::Kind::kFault);
  EXPECT_EQ(event.code, FaultCode::kNonFinite);
  EXPECT_EQ(event.source, Rank{1});
  EXPECT_EQ(event.key, KeyIndex{0});
  EXPECT_EQ(event.iteration, Iteration{1});
  EXPECT_FALSE(shard_->live());
  // The shard only drains: the job can be ended, and its memory is returned.
  Order({.kind = Command::Kind::kEndJob, .shard = shard_.get()});
  EXPECT_EQ(Next(Event::Kind::kJobEnded).kind, Event::Kind::kJobEnded);
}

TEST_F(ScreeningTest, AFoldedPrefixIsLookedAtWhileItIsThere) {
  StartWith(Screening::kReport, 3, 1);
  Push(0, 0, 1, 0, kNan);  // fills its lane, so it is folded at once
  ASSERT_EQ(Posted(wire::MessageKind::kCredit).size(), 1u);
  EXPECT_EQ(sums(), 1u);
  EXPECT_EQ(Next(Event::Kind::kNonFinite).source, Rank{0});
  // The rest of the round. The same sum is counted once, and another rank's gradient separately.
  Push(1, 0, 1, 0, 1.0f);
  Push(2, 0, 1, 0, kNan);
  EXPECT_EQ(sums(), 1u);
  EXPECT_EQ(gradients(), 2u);
  // The next round starts clean.
  for (std::uint32_t rank = 0; rank < 3; ++rank) Push(rank, 0, 2, 0, 1.0f);
  EXPECT_EQ(sums(), 1u);
}

TEST_F(ScreeningTest, RejectEndsTheJobAtTheFold) {
  StartWith(Screening::kReject, 3, 1);
  Push(0, 0, 1, 0, kNan);
  EXPECT_EQ(Next(Event::Kind::kFault).code, FaultCode::kNonFinite);
}

TEST_F(ScreeningTest, AnOverflowBlamesNobody) {
  StartWith(Screening::kReject, 2, 2);
  Push(0, 0, 1, 0, std::numeric_limits<float>::max());
  Push(1, 0, 1, 0, std::numeric_limits<float>::max());
  const Event event = Next(Event::Kind::kFault);
  EXPECT_EQ(event.code, FaultCode::kNonFinite);
  EXPECT_EQ(event.source, LaneOwner());
  EXPECT_EQ(gradients(), 0u);
}

TEST_F(ScreeningTest, OffNeitherCountsNorTells) {
  StartWith(Screening::kOff, 2, 2);
  Push(0, 0, 1, 0, kNan);
  Push(1, 0, 1, 0, 1.0f);
  EXPECT_EQ(Replies().size(), 2u);
  EXPECT_EQ(Next(Event::Kind::kNonFinite).kind, Event::Kind::kNone);
  EXPECT_EQ(sums(), 0u);
}

TEST_F(ScreeningTest, InitialValuesAreNotScreened) {
  StartWith(Screening::kReject, 2, 2);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    wire::MessageHeader header = Gradient(0, 1, 0);
    header.operation = wire::RoundOperation::kAssign;
    header.root = Rank{0};
    transport_.Deliver(lanes_[rank], header, rank == 0 ? Filled(kInfinity) : std::vector<float>{});
    loop_.RunOnce();
  }
  EXPECT_EQ(Replies().size(), 2u);
  EXPECT_TRUE(shard_->live());
}

// Halves without or with f32 masters; detected in the round's last pass, or during a fold.
struct Halves {
  ElementType half;
  ElementType masters;
  std::uint32_t slots;
};
class HalvesScreeningTest : public ScreeningTest, public ::testing::WithParamInterface<Halves> {};

TEST_P(HalvesScreeningTest, AreScreenedToo) {
  const bool is_f16 = GetParam().half == ElementType::kF16;
  const std::uint16_t one = is_f16 ? 0x3c00 : 0x3f80;
  const std::uint16_t infinity = is_f16 ? 0x7c00 : 0x7f80;
  key_.type = GetParam().masters;
  key_.gradient_type = key_.parameter_type = GetParam().half;
  StartWith(Screening::kReport, 3, GetParam().slots);
  for (std::uint64_t iteration = 1; iteration <= 2; ++iteration) {
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      wire::MessageHeader header = Gradient(0, iteration, 0);
      header.type = GetParam().half;
      std::vector<std::uint16_t> bits(kElements, one);
      if (iteration == 2 && rank == 1) bits.back() = infinity;
      std::vector<float> words(kElements / 2);  // the scripted transport counts in floats
      std::memcpy(words.data(), bits.data(), bits.size() * sizeof(std::uint16_t));
      transport_.Deliver(lanes_[rank], header, words);
      loop_.RunOnce();
    }
    EXPECT_EQ(Replies().size(), 3u);
    EXPECT_EQ(sums(), iteration - 1);
    EXPECT_EQ(gradients(), iteration - 1);
  }
  const Event event = Next(Event::Kind::kNonFinite);
  EXPECT_EQ(event.source, Rank{1});
  EXPECT_EQ(event.iteration, Iteration{2});
}

INSTANTIATE_TEST_SUITE_P(All, HalvesScreeningTest,
                         ::testing::Values(Halves{ElementType::kF16, ElementType::kF16, 4},
                                           Halves{ElementType::kF16, ElementType::kF16, 1},
                                           Halves{ElementType::kF16, ElementType::kF32, 4},
                                           Halves{ElementType::kF16, ElementType::kF32, 1},
                                           Halves{ElementType::kBf16, ElementType::kBf16, 4},
                                           Halves{ElementType::kBf16, ElementType::kBf16, 1},
                                           Halves{ElementType::kBf16, ElementType::kF32, 4},
                                           Halves{ElementType::kBf16, ElementType::kF32, 1}));

}  // namespace
}  // namespace phub::server
