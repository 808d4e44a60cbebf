// Which rounds are supported, and how others are refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "tests/unit/simd/arrays.h"

namespace phub::simd {
namespace {

TEST(Reductions, NamesAreApart) {
  std::set<std::string> reductions;
  for (const Reduction reduction : kReductions) reductions.insert(ToString(reduction));
  EXPECT_EQ(reductions, (std::set<std::string>{"sum", "mean", "min", "max", "product",
                                               "bitwise and", "bitwise or", "bitwise xor"}));
}

TEST(Rounds, WhatMakesNoSenseIsRefused) {
  const auto supported = [](ElementType wire, ElementType type, ElementType reply,
                            Reduction reduction, Optimizer optimizer) {
    return IsSupported({wire, type, reply, reduction, optimizer, 4, {}});
  };
  using enum ElementType;
  EXPECT_TRUE(supported(kBf16, kF32, kF16, Reduction::kMean, Optimizer::kAdam));
  EXPECT_TRUE(supported(kF16, kF16, kF16, Reduction::kMax, Optimizer::kSgd));
  EXPECT_TRUE(supported(kI64, kI64, kI64, Reduction::kProduct, Optimizer::kNone));
  EXPECT_FALSE(supported(kI64, kI64, kI64, Reduction::kMean, Optimizer::kNone));
  EXPECT_FALSE(supported(kU8, kU8, kU8, Reduction::kSum, Optimizer::kSgd));
  EXPECT_FALSE(supported(kF32, kF16, kF16, Reduction::kSum, Optimizer::kNone));
  EXPECT_FALSE(supported(kF16, kBf16, kBf16, Reduction::kSum, Optimizer::kNone));
  EXPECT_FALSE(supported(kF64, kF64, kF32, Reduction::kSum, Optimizer::kNone));
  EXPECT_FALSE(IsSupported({kF32, kF32, kF32, Reduction::kMean, Optimizer::kNone, 0, {}}));
}

TEST(RoundsDeathTest, ARoundThatMakesNoSenseIsOurMistake) {
  const float value = 1.0f;
  float output = 0.0f;
  const std::byte* const input = reinterpret_cast<const std::byte*>(&value);
  RoundMemory memory;
  memory.next_parameters = reinterpret_cast<std::byte*>(&output);
  Round round;
  round.optimizer = Optimizer::kSgd;  // but there are no parameters
  EXPECT_DEATH(ApplyRound(round, {nullptr, {&input, 1}}, 1, memory), "CHECK failed");
  round.optimizer = Optimizer::kNone;
  EXPECT_DEATH(ApplyRound(round, {nullptr, {}}, 1, memory), "CHECK failed");
}

}  // namespace
}  // namespace phub::simd
