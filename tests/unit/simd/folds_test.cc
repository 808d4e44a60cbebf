// Properties of folds beyond the random comparisons of rounds_test.cc: every value of the 16-bit
// types, zeros, NaN, overflow, order.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/simd_reference.h"
#include "tests/unit/simd/arrays.h"

namespace phub::simd {
namespace {

template <class T>
const std::byte* BytesOf(const std::vector<T>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}

template <class T>
std::vector<T> Folded(ElementType wire, Reduction reduction,
                      const std::vector<const std::byte*>& inputs, std::size_t count) {
  std::vector<T> output(count);
  Fold(wire, reduction, {nullptr, inputs}, count, reinterpret_cast<std::byte*>(output.data()));
  return output;
}

using Rows = std::vector<std::vector<float>>;

std::vector<float> FoldedFloats(Reduction reduction, const Rows& inputs) {
  std::vector<const std::byte*> places;
  for (const auto& input : inputs) places.push_back(BytesOf(input));
  return Folded<float>(ElementType::kF32, reduction, places, inputs[0].size());
}

class FoldsOnTarget : public OnTarget {};
INSTANTIATE_TEST_SUITE_P(Machine, FoldsOnTarget,
                         ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()), NameOfTarget);

// 64 halves: the special ones, and others from the whole range.
std::vector<std::uint16_t> ChosenHalves(ElementType half) {
  std::vector<std::uint16_t> chosen;
  for (const std::uint64_t bits : SpecialBits(half)) {
    chosen.push_back(static_cast<std::uint16_t>(bits));
  }
  for (std::uint32_t bits = 1; chosen.size() < 64; bits += 1'427) {
    chosen.push_back(static_cast<std::uint16_t>(bits));
  }
  return chosen;
}

// Every half with one other, folded and rounded back, on every target.
void CheckPairs(ElementType half, Reduction reduction, const std::vector<std::uint16_t>& every,
                std::uint16_t other) {
  const std::vector<std::uint16_t> others(every.size(), other);
  const std::vector<const std::byte*> inputs = {BytesOf(every), BytesOf(others)};
  std::vector<std::uint16_t> expected(every.size());
  for (std::size_t i = 0; i < every.size(); ++i) {
    const float value = reference::Folded<float>(half, reduction, inputs, i);
    reference::Store(half, reinterpret_cast<std::byte*>(expected.data()), i, value);
  }
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    std::vector<std::uint16_t> actual(every.size());
    RoundMemory memory;
    memory.next_parameters = reinterpret_cast<std::byte*>(actual.data());
    const Round round{half, half, half, reduction, Optimizer::kNone, 2, {}};
    ApplyRound(round, {nullptr, inputs}, every.size(), memory);
    const auto different = std::mismatch(actual.begin(), actual.end(), expected.begin()).first;
    EXPECT_EQ(different - actual.begin(), static_cast<std::ptrdiff_t>(every.size()))
        << numeric::ToString(half) << " " << ToString(reduction) << " " << other << " on "
        << TargetName();
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST(FoldsOnEveryTarget, EveryHalfWithEachOf64) {
  SetFloatingPointMode();
  std::vector<std::uint16_t> every(65'536);
  for (std::size_t i = 0; i < every.size(); ++i) every[i] = static_cast<std::uint16_t>(i);
  for (const ElementType half : {ElementType::kF16, ElementType::kBf16}) {
    for (const std::uint16_t other : ChosenHalves(half)) {
      CheckPairs(half, Reduction::kSum, every, other);
      CheckPairs(half, Reduction::kMin, every, other);
      CheckPairs(half, Reduction::kMax, every, other);
      CheckPairs(half, Reduction::kProduct, every, other);
    }
  }
}

TEST_P(FoldsOnTarget, ASumOfNegativeZerosIsNegativeZero) {
  const std::vector<float> zeros(37, -0.0f);  // a fold that starts from +0 would lose the sign
  for (const std::size_t ranks : {1u, 2u, 20u}) {
    for (const float value : FoldedFloats(Reduction::kSum, Rows(ranks, zeros))) {
      EXPECT_TRUE(value == 0.0f && std::signbit(value)) << "ranks " << ranks;
    }
  }
}

TEST_P(FoldsOnTarget, OverflowFollowsTheOrderOfRanks) {
  const std::vector<float> huge(19, 3e38f);
  const std::vector<float> minus_huge(19, -3e38f);
  const std::vector<float> infinite(19, std::numeric_limits<float>::infinity());
  EXPECT_EQ(FoldedFloats(Reduction::kSum, {huge, minus_huge, huge}), huge);
  EXPECT_EQ(FoldedFloats(Reduction::kSum, {huge, huge, minus_huge}), infinite);
}

TEST_P(FoldsOnTarget, ExtremaOfNanAreCanonicalAndZerosAreOrdered) {
  const float quiet = std::bit_cast<float>(0xffc12345u);
  const float signaling = std::bit_cast<float>(0x7f800001u);
  for (const std::size_t count : {1u, 4u, 37u}) {
    const std::vector<float> one(count, 1.0f);
    const std::vector<float> zero(count, 0.0f);
    const std::vector<float> minus_zero(count, -0.0f);
    for (const Reduction reduction : {Reduction::kMin, Reduction::kMax}) {
      for (const float nan : {quiet, signaling}) {
        const std::vector<float> nans(count, nan);
        for (const Rows& inputs :
             {Rows{nans}, Rows{nans, one}, Rows{one, nans}, Rows{one, nans, one}}) {
          for (const float value : FoldedFloats(reduction, inputs)) {
            EXPECT_EQ(std::bit_cast<std::uint32_t>(value), 0x7fc00000u);
          }
        }
      }
      for (const Rows& inputs : {Rows{zero, minus_zero}, Rows{minus_zero, zero}}) {
        for (const float value : FoldedFloats(reduction, inputs)) {
          EXPECT_EQ(std::signbit(value), reduction == Reduction::kMin);
        }
      }
    }
  }
}

TEST_P(FoldsOnTarget, IntegersWrap) {
  const std::vector<std::int32_t> large(21, std::numeric_limits<std::int32_t>::max());
  const std::vector<const std::byte*> inputs(3, BytesOf(large));
  const auto sum = Folded<std::int32_t>(ElementType::kI32, Reduction::kSum, inputs, 21);
  EXPECT_EQ(sum, std::vector<std::int32_t>(21, 0x7ffffffd));
  const std::vector<std::uint8_t> bytes(35, 200);
  const std::vector<const std::byte*> pair(2, BytesOf(bytes));
  EXPECT_EQ(Folded<std::uint8_t>(ElementType::kU8, Reduction::kSum, pair, 35),
            std::vector<std::uint8_t>(35, 144));
  EXPECT_EQ(Folded<std::uint8_t>(ElementType::kU8, Reduction::kProduct, pair, 35),
            std::vector<std::uint8_t>(35, 64));
}

// Folding a prefix of any length and then the rest into the same accumulator gives the same bits as
// folding all at once.
TEST_P(FoldsOnTarget, AnAccumulatorMayBeFoldedIntoItself) {
  SeededRandom random(11);
  constexpr std::size_t kRanks = 19;
  constexpr std::size_t kCount = 4'133;
  for (const ElementType wire : kElementTypes) {
    const ElementType accumulation = numeric::AccumulationType(wire);
    std::vector<Array> inputs;
    std::vector<const std::byte*> places;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      inputs.emplace_back(wire, kCount, Array::Use::kRead, random.Below(4));
      FillRandom(wire, Content::kOrdinary, random, inputs.back());
      places.push_back(inputs.back().data());
    }
    for (const Reduction reduction : kReductions) {
      if (!numeric::IsReductionOf(reduction, wire)) continue;
      Array whole(accumulation, kCount, Array::Use::kWritten);
      Fold(wire, reduction, {nullptr, places}, kCount, whole.data());
      for (std::size_t prefix = 1; prefix <= kRanks; ++prefix) {
        const std::span<const std::byte* const> all(places);
        Array accumulator(accumulation, kCount, Array::Use::kWritten);
        Fold(wire, reduction, {nullptr, all.first(prefix)}, kCount, accumulator.data());
        Fold(wire, reduction, {accumulator.data(), all.subspan(prefix)}, kCount,
             accumulator.data());
        EXPECT_EQ(FirstDifference(accumulation, accumulator.data(), whole.data(), kCount, false),
                  kCount)
            << numeric::ToString(wire) << " " << ToString(reduction) << " prefix " << prefix;
      }
    }
  }
}

// With these values, a fused multiply-add gives different bits than two roundings.
TEST_P(FoldsOnTarget, MultiplyAndAddRoundApart) {
  const float factor = 1.0f + 0x1p-12f;                       // its square is 1 + 2^-11 + 2^-24,
  const float squared = reference::Rounded(factor * factor);  // which rounds to 1 + 2^-11
  ASSERT_NE(std::fma(factor, factor, -squared), 0.0f);
  const std::vector<float> gradient(21, factor);
  std::vector<float> parameters(21, squared);
  Round round;
  round.optimizer = Optimizer::kSgd;
  round.arguments.learning_rate = static_cast<double>(factor);
  RoundMemory memory;
  memory.next_parameters = reinterpret_cast<std::byte*>(parameters.data());
  memory.parameters = memory.next_parameters;
  const std::byte* const input = BytesOf(gradient);
  ApplyRound(round, {nullptr, {&input, 1}}, 21, memory);
  EXPECT_EQ(parameters, std::vector<float>(21, 0.0f));
}

}  // namespace
}  // namespace phub::simd
