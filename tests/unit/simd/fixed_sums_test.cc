// Sums in fixed point: every instruction set has the bits of common/aggregation, which the ends of
// a stream of sums use; and the error is within its bound.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "common/aggregation/fixed_point.h"
#include "tests/support/simd_reference.h"
#include "tests/unit/simd/arrays.h"

namespace phub::simd {
namespace {

constexpr ElementType kSummed[] = {ElementType::kF32, ElementType::kF16, ElementType::kBf16};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Floats = std::vector<float>;

std::vector<const std::byte*> PlacesOf(const std::vector<Array>& gradients) {
  std::vector<const std::byte*> places;
  for (const Array& gradient : gradients) places.push_back(gradient.data());
  return places;
}

// As ranks and an aggregator compute it: exponents, integers, their sum, and back.
Floats SumByIntegers(ElementType wire, std::size_t block, const std::vector<Array>& gradients,
                     std::size_t count) {
  const auto ranks = static_cast<std::uint32_t>(gradients.size());
  Floats sum(count);
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t size = std::min(block, count - begin);
    std::vector<Floats> values(ranks, Floats(size));
    std::uint8_t exponent = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      for (std::size_t i = 0; i < size; ++i) {
        values[rank][i] = reference::Load<float>(wire, gradients[rank].data(), begin + i);
      }
      exponent = std::max(exponent, aggregation::ExponentOf(values[rank]));
    }
    std::vector<std::int32_t> fixed(size), total(size);
    for (const Floats& each : values) {
      aggregation::ToFixed(each, exponent, ranks, fixed);
      for (std::size_t i = 0; i < size; ++i) total[i] += fixed[i];  // -fsanitize finds overflows
    }
    aggregation::FromFixed(total, exponent, ranks, std::span(sum).subspan(begin, size));
  }
  return sum;
}

// Without a class: the present instruction set.
void CheckSum(ElementType wire, std::size_t block, const std::vector<Array>& gradients,
              std::size_t count) {
  const Floats expected = SumByIntegers(wire, block, gradients, count);
  Array sum(ElementType::kF32, count, Array::Use::kWritten);
  const bool non_finite = SumFixed(wire, block, PlacesOf(gradients), count, sum.data());
  const auto* const bytes = reinterpret_cast<const std::byte*>(expected.data());
  EXPECT_EQ(FirstDifference(ElementType::kF32, sum.data(), bytes, count, /*any_nan=*/true), count)
      << numeric::ToString(wire) << " block=" << block << " ranks=" << gradients.size();
  EXPECT_EQ(non_finite, std::any_of(expected.begin(), expected.end(),
                                    [](float value) { return !std::isfinite(value); }));
  EXPECT_TRUE(sum.MarginsAreUntouched());
}

std::vector<Array> RandomGradients(ElementType wire, Content content, std::size_t ranks,
                                   std::size_t count, SeededRandom& random) {
  std::vector<Array> gradients(ranks, Array(wire, count, Array::Use::kRead));
  for (Array& gradient : gradients) FillRandom(wire, content, random, gradient);
  return gradients;
}

class FixedSums : public OnTarget {};
INSTANTIATE_TEST_SUITE_P(Machine, FixedSums,
                         ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()), NameOfTarget);

TEST_P(FixedSums, HaveTheBitsOfSumsOfIntegers) {
  SeededRandom random(27);
  for (const ElementType wire : kSummed) {
    for (std::size_t ranks = 1; ranks <= 17; ++ranks) {
      for (const std::size_t block : {16u, 37u, 350u}) {
        const std::size_t count = 1 + random.Below(800);
        CheckSum(wire, block, RandomGradients(wire, Content::kOrdinary, ranks, count, random),
                 count);
      }
    }
    CheckSum(wire, 64, RandomGradients(wire, Content::kOrdinary, 254, 100, random), 100);
  }
}

TEST_P(FixedSums, OfEveryShortLength) {
  SeededRandom random(28);
  for (const ElementType wire : kSummed) {
    for (std::size_t count = 1; count <= 70; ++count) {
      CheckSum(wire, 848, RandomGradients(wire, Content::kOrdinary, 3, count, random), count);
    }
  }
}

// Zeros, subnormals, the greatest values, infinities, NaNs: most blocks of 16 have one.
TEST_P(FixedSums, OfAnyBits) {
  SeededRandom random(29);
  for (const ElementType wire : kSummed) {
    for (int i = 0; i < 40; ++i) {
      CheckSum(wire, 16, RandomGradients(wire, Content::kAnyBits, 1 + random.Below(4), 65, random),
               65);
    }
  }
}

TEST_P(FixedSums, DoNotDependOnTheOrderOfRanks) {
  SeededRandom random(30);
  std::vector<Array> gradients =
      RandomGradients(ElementType::kF32, Content::kOrdinary, 7, 500, random);
  Floats first(500);
  for (int i = 0; i < 5; ++i) {
    Floats sum(500);
    SumFixed(ElementType::kF32, 350, PlacesOf(gradients), 500,
             reinterpret_cast<std::byte*>(sum.data()));
    if (i == 0) first = sum;
    EXPECT_EQ(sum, first);
    std::rotate(gradients.begin(), gradients.begin() + 1 + i, gradients.end());
  }
}

// Subnormal blocks are summed exactly enough, blocks of zeros are +0.
TEST_P(FixedSums, OfZerosAndSubnormals) {
  constexpr float kLeast = std::numeric_limits<float>::denorm_min();
  const Floats one = {-0.0f, kLeast, 5 * kLeast, -kLeast}, other = {-0.0f, kLeast, -7 * kLeast, 0};
  const std::byte* const places[] = {reinterpret_cast<const std::byte*>(one.data()),
                                     reinterpret_cast<const std::byte*>(other.data())};
  Floats sum(4);
  EXPECT_FALSE(
      SumFixed(ElementType::kF32, 16, places, 4, reinterpret_cast<std::byte*>(sum.data())));
  EXPECT_EQ(sum, (Floats{0, 2 * kLeast, -2 * kLeast, -kLeast}));
  EXPECT_FALSE(std::signbit(sum[0]));
}

TEST_P(FixedSums, BeyondTheTypeAreInfiniteAndReported) {
  const Floats values(20, std::numeric_limits<float>::max());
  const std::byte* const places[] = {reinterpret_cast<const std::byte*>(values.data()),
                                     reinterpret_cast<const std::byte*>(values.data())};
  Floats sum(20);
  auto* const output = reinterpret_cast<std::byte*>(sum.data());
  EXPECT_TRUE(SumFixed(ElementType::kF32, 16, places, 20, output));
  EXPECT_EQ(sum, Floats(20, kInfinity));
  const Floats large(20, 0x1p123f);
  const std::vector<const std::byte*> ranks(254, reinterpret_cast<const std::byte*>(large.data()));
  EXPECT_TRUE(SumFixed(ElementType::kF32, 16, ranks, 20, output));
  // The greatest sums whose results need not be examined.
  const Floats halves(20, 0x1.fffffep119f);
  const std::vector<const std::byte*> many(254, reinterpret_cast<const std::byte*>(halves.data()));
  EXPECT_FALSE(SumFixed(ElementType::kF32, 16, many, 20, output));
  for (const float value : sum) EXPECT_TRUE(std::isfinite(value));
}

// Every rank's product with the scale has a fraction of about one half, in the same direction: the
// greatest error that rounding to integers can have.
std::vector<Floats> Adversarial(std::uint32_t ranks, int e, std::size_t count,
                                SeededRandom& random) {
  std::vector<Floats> all(ranks, Floats(count));
  const double scale = std::ldexp(2147483647.0 / ranks, -e);
  for (Floats& values : all) {
    values[0] = static_cast<float>(std::ldexp(0.75, e));  // sets the exponent
    for (std::size_t i = 1; i < count; ++i) {
      const double integer = static_cast<double>(random.Below(1u << 10));
      values[i] = static_cast<float>((integer + 0.499) / scale);
    }
  }
  return all;
}

void CheckError(const std::vector<Floats>& all, int e) {
  const auto n = static_cast<long double>(all.size());
  std::vector<const std::byte*> places;
  for (const Floats& each : all) places.push_back(reinterpret_cast<const std::byte*>(each.data()));
  Floats sum(all[0].size());
  SumFixed(ElementType::kF32, sum.size(), places, sum.size(),
           reinterpret_cast<std::byte*>(sum.data()));
  for (std::size_t i = 0; i < sum.size(); ++i) {
    long double exact = 0;
    for (const Floats& each : all) exact += static_cast<long double>(each[i]);
    const long double size = std::abs(static_cast<long double>(sum[i]));
    const long double ulp =
        static_cast<long double>(std::nextafter(std::abs(sum[i]), kInfinity)) - size;
    const long double bound = std::ldexp(n * n, e - 32) * (1 + 0x1p-31L) + ulp / 2;
    EXPECT_LE(std::abs(exact - static_cast<long double>(sum[i])), bound)
        << "ranks=" << all.size() << " e=" << e << " element=" << i;
  }
}

TEST_P(FixedSums, HaveErrorsWithinTheBound) {
  SeededRandom random(31);
  for (const std::uint32_t ranks : {1u, 2u, 3u, 16u, 100u, 254u}) {
    for (const int e : {-100, 0, 90}) {
      CheckError(Adversarial(ranks, e, 350, random), e);
      std::vector<Floats> all(ranks, Floats(350));
      for (Floats& values : all) {
        for (float& value : values) {
          const auto fraction = static_cast<double>(random.Next() >> 11) * 0x1p-53 - 0.5;
          value = static_cast<float>(std::ldexp(fraction, e - static_cast<int>(random.Below(40))));
        }
        values[0] = static_cast<float>(std::ldexp(0.75, e));
      }
      CheckError(all, e);
    }
  }
}

}  // namespace
}  // namespace phub::simd
