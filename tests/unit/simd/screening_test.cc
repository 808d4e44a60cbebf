// Compares the folds' reports of NaNs and infinities on every instruction set with the reference's
// fold: one element at a time, with std::isfinite.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/support/simd_reference.h"
#include "tests/unit/simd/arrays.h"

namespace phub::simd {
namespace {

using numeric::AccumulationType;

class ScreeningOnTarget : public OnTarget {};
INSTANTIATE_TEST_SUITE_P(Machine, ScreeningOnTarget,
                         ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()), NameOfTarget);

template <class T>
bool ReferenceSays(ElementType wire, Reduction reduction, const std::vector<const std::byte*>& rows,
                   std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if constexpr (std::is_floating_point_v<T>) {
      if (!std::isfinite(reference::Folded<T>(wire, reduction, rows, i))) return true;
    }
  }
  return false;
}

bool ReferenceSays(ElementType wire, Reduction reduction, const std::vector<const std::byte*>& rows,
                   std::size_t count) {
  switch (AccumulationType(wire)) {
    case ElementType::kF32: return ReferenceSays<float>(wire, reduction, rows, count);
    case ElementType::kF64: return ReferenceSays<double>(wire, reduction, rows, count);
    default: return false;
  }
}

// Rows of ordinary numbers; with some probability one element of one row is special.
struct Rows {
  Rows(ElementType wire, std::size_t ranks, std::size_t count, SeededRandom& random) {
    const std::vector<std::uint64_t> special = SpecialBits(wire);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      arrays.emplace_back(wire, count, Array::Use::kRead, random.Below(4));
      FillRandom(wire, Content::kOrdinary, random, arrays.back());
    }
    if (count > 0 && random.Chance(2, 3)) {
      const std::uint64_t bits = special[random.Below(special.size())];
      const std::size_t bytes = numeric::ElementBytes(wire);
      std::memcpy(arrays[random.Below(ranks)].data() + random.Below(count) * bytes, &bits, bytes);
    }
    for (const Array& array : arrays) places.push_back(array.data());
  }
  std::vector<Array> arrays;
  std::vector<const std::byte*> places;
};

constexpr std::size_t kCounts[] = {0, 1, 2, 3, 7, 8, 15, 17, 33, 63, 64, 65, 129, 1500, 5000};

TEST_P(ScreeningOnTarget, FoldsAndRoundsSayWhetherTheResultIsFinite) {
  SeededRandom random(7);
  std::size_t found = 0;
  std::size_t trials = 0;
  for (const ElementType wire : kElementTypes) {
    for (const Reduction reduction : kReductions) {
      for (const std::size_t count : kCounts) {
        const std::size_t ranks = 1 + random.Below(20);
        const Rows rows(wire, ranks, count, random);
        const Round round{
            wire, wire, wire, reduction, Optimizer::kNone, static_cast<std::uint32_t>(ranks), {}};
        if (!IsSupported(round)) continue;
        const bool expected = ReferenceSays(wire, reduction, rows.places, count);
        std::vector<std::byte> accumulator(count * 8 + 8), next(count * 8 + 8);
        const std::string trial = std::string(numeric::ToString(wire)) + " " + ToString(reduction) +
                                  " count " + std::to_string(count) + " ranks " +
                                  std::to_string(ranks);
        EXPECT_EQ(Fold(wire, reduction, {nullptr, rows.places}, count, accumulator.data()),
                  expected)
            << trial;
        RoundMemory memory;
        memory.next_parameters = next.data();
        EXPECT_EQ(ApplyRound(round, {nullptr, rows.places}, count, memory), expected) << trial;
        // For a prefix of any length that was folded first.
        const std::size_t prefix = 1 + random.Below(ranks);
        const std::span<const std::byte* const> all = rows.places;
        (void)Fold(wire, reduction, {nullptr, all.first(prefix)}, count, accumulator.data());
        EXPECT_EQ(ApplyRound(round, {accumulator.data(), all.subspan(prefix)}, count, memory),
                  expected)
            << trial << " prefix " << prefix;
        found += expected ? 1 : 0;
        ++trials;
      }
    }
  }
  EXPECT_GT(found, trials / 10) << "the special values are to matter";
  EXPECT_LT(found, trials);
}

// The optimizers' loops, fused and not.
TEST_P(ScreeningOnTarget, EveryOptimizerSaysTheSame) {
  SeededRandom random(8);
  for (const ElementType wire : {ElementType::kF32, ElementType::kF16, ElementType::kBf16}) {
    for (const Optimizer optimizer : kOptimizers) {
      for (const std::size_t count : kCounts) {
        for (const double clip_value : {0.0, 0.5}) {
          const Rows rows(wire, 3, count, random);
          Round round{wire, ElementType::kF32, ElementType::kF32, Reduction::kMean, optimizer, 3,
                      {}};
          round.arguments.step = 2;
          round.arguments.clip_value = clip_value;
          round.arguments.epsilon = 1e-8;
          std::vector<float> parameters(count + 1, 1.0f), state0(count + 1), state1(count + 1);
          RoundMemory memory;
          memory.parameters = reinterpret_cast<std::byte*>(parameters.data());
          memory.next_parameters = reinterpret_cast<std::byte*>(parameters.data());
          memory.state = {reinterpret_cast<std::byte*>(state0.data()),
                          reinterpret_cast<std::byte*>(state1.data())};
          EXPECT_EQ(ApplyRound(round, {nullptr, rows.places}, count, memory),
                    ReferenceSays(wire, Reduction::kSum, rows.places, count))
              << numeric::ToString(wire) << " " << ToString(optimizer) << " count " << count;
        }
      }
    }
  }
}

// Parameters or replies that are halves, with any optimizer: the combined value is checked before
// it is narrowed.
TEST_P(ScreeningOnTarget, RoundsThatEndInHalvesSayTheSame) {
  SeededRandom random(10);
  std::size_t found = 0;
  for (const ElementType half : {ElementType::kF16, ElementType::kBf16}) {
    for (const ElementType type : {half, ElementType::kF32}) {
      for (const Optimizer optimizer : kOptimizers) {
        for (const std::size_t count : kCounts) {
          const Rows rows(half, 3, count, random);
          Round round{half, type, half, Reduction::kMean, optimizer, 3, {}};
          round.arguments.step = 2;
          round.arguments.epsilon = 1e-8;
          ASSERT_TRUE(IsSupported(round));
          std::vector<float> parameters(count + 1, 0.0f), state0(count + 1), state1(count + 1);
          std::vector<std::uint16_t> reply(count + 1);
          std::byte* const replies[] = {reinterpret_cast<std::byte*>(reply.data())};
          RoundMemory memory;
          memory.parameters = reinterpret_cast<std::byte*>(parameters.data());
          memory.next_parameters = reinterpret_cast<std::byte*>(parameters.data());
          memory.state = {reinterpret_cast<std::byte*>(state0.data()),
                          reinterpret_cast<std::byte*>(state1.data())};
          memory.replies = replies;
          const bool expected = ReferenceSays(half, Reduction::kSum, rows.places, count);
          EXPECT_EQ(ApplyRound(round, {nullptr, rows.places}, count, memory), expected)
              << numeric::ToString(half) << " over " << numeric::ToString(type) << " "
              << ToString(optimizer) << " count " << count;
          found += expected ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(found, 0u);
}

// A sum that fits f32 but not f16 is finite here, although a worker that receives it as f16 gets
// infinity.
TEST_P(ScreeningOnTarget, ASumIsLookedAtBeforeItIsNarrowed) {
  const std::vector<std::uint16_t> largest(64, 0x7bff);  // 65504
  const auto* const row = reinterpret_cast<const std::byte*>(largest.data());
  const std::byte* const rows[] = {row, row};
  std::vector<std::uint16_t> sum(largest.size());
  const Round round{ElementType::kF16,
                    ElementType::kF16,
                    ElementType::kF16,
                    Reduction::kSum,
                    Optimizer::kNone,
                    2,
                    {}};
  RoundMemory memory;
  memory.next_parameters = reinterpret_cast<std::byte*>(sum.data());
  EXPECT_FALSE(ApplyRound(round, {nullptr, rows}, sum.size(), memory));
  EXPECT_EQ(sum[63], 0x7c00);
}

TEST_P(ScreeningOnTarget, FiniteTermsWhoseSumOverflowsAreSeenToo) {
  const float largest = std::numeric_limits<float>::max();
  std::vector<float> a(100, 1.0f), b(100, 1.0f), sum(100);
  a[77] = b[77] = largest;
  const std::byte* const rows[] = {reinterpret_cast<const std::byte*>(a.data()),
                                   reinterpret_cast<const std::byte*>(b.data())};
  EXPECT_TRUE(Fold(ElementType::kF32, Reduction::kSum, {nullptr, rows}, sum.size(),
                   reinterpret_cast<std::byte*>(sum.data())));
  EXPECT_FALSE(HasNonFinite(ElementType::kF32, rows[0], a.size()));
  EXPECT_FALSE(HasNonFinite(ElementType::kF32, rows[1], b.size()));
}

TEST_P(ScreeningOnTarget, OneArrayIsLookedAtElementByElement) {
  SeededRandom random(9);
  for (const ElementType wire : kElementTypes) {
    for (const std::size_t count : kCounts) {
      const Rows rows(wire, 1, count, random);
      EXPECT_EQ(HasNonFinite(wire, rows.places[0], count),
                ReferenceSays(wire, Reduction::kSum, rows.places, count))
          << numeric::ToString(wire) << " count " << count;
    }
  }
}

}  // namespace
}  // namespace phub::simd
