// What is told about optimizers and rounds, and the powers that Adam's corrections are made of.
#include "common/simd/optimizers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "tests/unit/simd/arrays.h"

namespace phub::simd {
namespace {

TEST(Optimizers, NamesAreApart) {
  std::set<std::string> names;
  for (const Optimizer optimizer : kOptimizers) {
    names.insert(ToString(optimizer));
    std::set<std::string> states;
    for (std::size_t i = 0; i < StateCount(optimizer); ++i) states.insert(StateName(optimizer, i));
    EXPECT_EQ(states.size(), StateCount(optimizer)) << ToString(optimizer);
    EXPECT_FALSE(states.contains("")) << ToString(optimizer);
    EXPECT_LE(StateCount(optimizer), kStatesMax);
  }
  EXPECT_EQ(names, (std::set<std::string>{"none", "sgd", "momentum", "nesterov", "adam", "adamw",
                                          "adagrad"}));
  std::set<std::string> reductions;
  for (const Reduction reduction : kReductions) reductions.insert(ToString(reduction));
  EXPECT_EQ(reductions, (std::set<std::string>{"sum", "mean", "min", "max", "product"}));
}

TEST(Optimizers, StateIsNamedForSavedFiles) {
  EXPECT_STREQ(StateName(Optimizer::kMomentum, 0), "momentum");
  EXPECT_STREQ(StateName(Optimizer::kNesterov, 0), "momentum");
  EXPECT_STREQ(StateName(Optimizer::kAdam, 0), "first_moment");
  EXPECT_STREQ(StateName(Optimizer::kAdamW, 1), "second_moment");
  EXPECT_STREQ(StateName(Optimizer::kAdagrad, 0), "sum_of_squares");
}

TEST(Optimizers, PowersAreTheNearestDouble) {
  for (const double base : {0.0, 0.5, 0.9, 0.95, 0.98, 0.99, 0.999, 0.9999, 1.0}) {
    for (std::uint64_t exponent = 0; exponent < 2'000'000; exponent += 1 + exponent / 7) {
      const double power = PowerOf(base, exponent);
      const long double expected =
          std::pow(static_cast<long double>(base), static_cast<long double>(exponent));
      // Half a last bit, and a little for the error of `expected`. Below 1e-280, where the parts
      // that carry the lower bits are lost, powers are 0 to whatever they are subtracted from.
      const long double last_bit = std::nextafter(power, 2.0) - power;
      const long double bound = std::max(0.5005L * last_bit, 1e-280L);
      EXPECT_LE(std::fabs(power - expected), bound) << base << "^" << exponent;
    }
  }
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
