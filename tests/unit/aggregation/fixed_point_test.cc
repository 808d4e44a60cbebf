#include "common/aggregation/fixed_point.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "common/aggregation/slot.h"
#include "common/base/random.h"
#include "common/simd/kernels.h"

namespace phub::aggregation {
namespace {

using Floats = std::vector<float>;
using Ints = std::vector<std::int32_t>;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kSubnormal = std::numeric_limits<float>::denorm_min();
constexpr float kGreatest = std::numeric_limits<float>::max();

std::uint8_t SharedExponent(const std::vector<Floats>& ranks) {
  std::uint8_t exponent = 0;
  for (const Floats& values : ranks) exponent = std::max(exponent, ExponentOf(values));
  return exponent;
}

// The integers of all ranks, added as the aggregator adds them, in the given order of ranks.
Ints SumOfIntegers(const std::vector<Floats>& ranks, const std::vector<std::size_t>& order) {
  const std::size_t count = ranks.front().size();
  std::vector<std::uint32_t> sum(count);
  for (std::size_t i = 0; i < order.size(); ++i) {
    Ints fixed(count);
    ToFixed(ranks[order[i]], SharedExponent(ranks), static_cast<std::uint32_t>(ranks.size()),
            fixed);
    std::vector<std::uint8_t> payload(4 * count);
    for (std::size_t k = 0; k < count; ++k)
      phub_store32(&payload[4 * k], static_cast<std::uint32_t>(fixed[k]));
    phub_slot_add(sum.data(), payload.data(), static_cast<std::uint32_t>(count), i == 0);
  }
  Ints result(count);
  std::ranges::transform(sum, result.begin(),
                         [](std::uint32_t value) { return static_cast<std::int32_t>(value); });
  return result;
}

Floats SumOf(const std::vector<Floats>& ranks, std::vector<std::size_t> order = {}) {
  if (order.empty()) {
    order.resize(ranks.size());
    std::iota(order.begin(), order.end(), 0);
  }
  Floats result(ranks.front().size());
  FromFixed(SumOfIntegers(ranks, order), SharedExponent(ranks),
            static_cast<std::uint32_t>(ranks.size()), result);
  return result;
}

// The definition, number by number: exponents by frexp, rounding by nearbyint, the sum in 64 bits.
float ReferenceSum(const std::vector<Floats>& ranks, std::size_t at) {
  int e = -126;
  for (const Floats& values : ranks) {
    for (const float value : values) {
      if (!std::isfinite(value)) return kNan;
      int exponent = 0;
      std::frexp(value, &exponent);  // |value| < 2^exponent, as small as possible
      if (value != 0) e = std::max(e, exponent);
    }
  }
  const double scale = std::ldexp(2147483647.0 / static_cast<double>(ranks.size()), -e);
  std::int64_t sum = 0;
  for (const Floats& values : ranks)
    sum += static_cast<std::int64_t>(std::nearbyint(static_cast<double>(values[at]) * scale));
  EXPECT_EQ(sum, static_cast<std::int32_t>(sum)) << "overflow";
  return static_cast<float>(static_cast<double>(sum) / scale);
}

bool SameBits(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

// Gradients of `ranks` ranks whose magnitudes spread over `spread` powers of two from 2^top down.
std::vector<Floats> RandomRanks(SeededRandom& random, std::size_t ranks, std::size_t count, int top,
                                int spread) {
  std::vector<Floats> all(ranks, Floats(count));
  for (Floats& values : all) {
    for (float& value : values) {
      const auto fraction = static_cast<double>(random.Next() >> 11) * 0x1p-53;
      const int exponent = top - static_cast<int>(random.Next() % static_cast<unsigned>(spread));
      value = static_cast<float>(std::ldexp(fraction, exponent));
      if (!std::isfinite(value)) value = kGreatest;
      if (random.Next() % 2 == 0) value = -value;
    }
  }
  return all;
}

class FixedPoint : public ::testing::Test {
 protected:
  FixedPoint() { simd::SetFloatingPointMode(); }
};

TEST_F(FixedPoint, TheExponentIsTheGreatestField) {
  EXPECT_EQ(ExponentOf({}), 0);
  EXPECT_EQ(ExponentOf(Floats{0.0f, -0.0f}), 0);
  EXPECT_EQ(ExponentOf(Floats{kSubnormal, -kSubnormal}), 0);
  EXPECT_EQ(ExponentOf(Floats{std::numeric_limits<float>::min()}), 1);
  EXPECT_EQ(ExponentOf(Floats{0.5f, -1.5f, 1.0f}), 127);
  EXPECT_EQ(ExponentOf(Floats{kGreatest}), 254);
  EXPECT_EQ(ExponentOf(Floats{1, -kInfinity}), kNotFinite);
  EXPECT_EQ(ExponentOf(Floats{kNan, 1}), kNotFinite);
}

TEST_F(FixedPoint, SumsHaveTheBitsOfTheDefinitionInAnyOrder) {
  SeededRandom random(24);
  for (const std::size_t n : {1u, 2u, 3u, 7u, 8u, 64u}) {
    for (const int top : {-140, -126, -100, 0, 1, 60, 128}) {
      const std::vector<Floats> ranks = RandomRanks(random, n, 50, top, 30);
      const Floats sum = SumOf(ranks);
      for (std::size_t i = 0; i < sum.size(); ++i)
        EXPECT_PRED2(SameBits, sum[i], ReferenceSum(ranks, i)) << n << " " << top << " " << i;
      std::vector<std::size_t> backwards(n);
      std::iota(backwards.rbegin(), backwards.rend(), 0);
      EXPECT_EQ(SumOf(ranks, backwards), sum);
    }
  }
}

TEST_F(FixedPoint, TheErrorIsWithinTheBound) {
  SeededRandom random(25);
  for (const std::size_t n : {1u, 2u, 5u, 16u, 63u}) {
    for (const int top : {-126, -20, 0, 100}) {
      const std::vector<Floats> ranks = RandomRanks(random, n, 400, top, 40);
      const Floats sum = SumOf(ranks);
      const int e = int{SharedExponent(ranks)} - 126;
      for (std::size_t i = 0; i < sum.size(); ++i) {
        long double exact =
            0;  // 64 bits: the sum of 63 f32 within 40 powers of two is exact enough
        for (const Floats& values : ranks) exact += static_cast<long double>(values[i]);
        const float size = std::abs(sum[i]);
        const long double ulp = static_cast<long double>(std::nextafter(size, kInfinity)) - size;
        const long double bound =
            std::ldexp(static_cast<long double>(n * n), e - 32) * (1 + 0x1p-31L) + ulp / 2;
        EXPECT_LE(std::abs(exact - static_cast<long double>(sum[i])), bound) << n << " " << top;
      }
    }
  }
}

TEST_F(FixedPoint, TheGreatestValuesDoNotOverflow) {
  for (const std::uint32_t n : {1u, 2u, 3u, 100u, kFixedRanksMax}) {
    // The greatest value below a power of two, from every rank.
    const float value = std::nextafter(2.0f, 0.0f);
    Ints fixed(2);
    ToFixed(Floats{value, -value}, 127, n, fixed);
    EXPECT_LE(std::int64_t{fixed[0]} * n, std::numeric_limits<std::int32_t>::max()) << n;
    EXPECT_GE(std::int64_t{fixed[1]} * n, std::numeric_limits<std::int32_t>::min()) << n;
  }
}

TEST_F(FixedPoint, ZerosAndSubnormalsAreSummed) {
  const Floats zeros = SumOf({{0.0f, -0.0f}, {0.0f, -0.0f}});
  for (const float zero : zeros) EXPECT_EQ(std::bit_cast<std::uint32_t>(zero), 0u) << "+0";
  EXPECT_EQ(SumOf({{kSubnormal, 5 * kSubnormal}, {kSubnormal, -7 * kSubnormal}}),
            (Floats{2 * kSubnormal, -2 * kSubnormal}));
  const float least = std::numeric_limits<float>::min();
  EXPECT_EQ(SumOf({{least - kSubnormal}, {kSubnormal}}), Floats{least});
  EXPECT_EQ(SumOf({{1.0f, kSubnormal}, {1.0f, kSubnormal}}), (Floats{2.0f, 0.0f}))
      << "too small for this block";
}

TEST_F(FixedPoint, ANumberThatIsNotFiniteMakesTheBlockNan) {
  for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
    for (const float value : SumOf({{1, 2, 3}, {1, bad, 3}})) EXPECT_TRUE(std::isnan(value));
    Ints fixed(2, 5);
    ToFixed(Floats{bad, 1}, kNotFinite, 2, fixed);
    EXPECT_EQ(fixed, (Ints{0, 0}));
  }
}

TEST_F(FixedPoint, SumsBeyondTheTypeAreInfinite) {
  EXPECT_EQ(SumOf({{kGreatest, kGreatest}, {kGreatest, -kGreatest}}), (Floats{kInfinity, 0.0f}));
}

// 16-bit types are widened, and the sum, an f32, is what their accumulators hold. A mean is that
// sum divided by n, by the same code as on other paths.
TEST_F(FixedPoint, SixteenBitTypesAreWidenedExactly) {
  using simd::ElementType;
  SeededRandom random(26);
  for (const ElementType type : {ElementType::kF16, ElementType::kBf16}) {
    std::vector<Floats> ranks(3, Floats(64));
    for (Floats& values : ranks) {
      std::vector<std::uint16_t> halves(values.size());
      for (std::uint16_t& half : halves)  // small exponents: finite in both types
        half = static_cast<std::uint16_t>(random.Next() & 0xbfff);
      simd::Convert(type, std::as_bytes(std::span(halves)).data(), ElementType::kF32,
                    std::as_writable_bytes(std::span(values)).data(), values.size());
    }
    const Floats sum = SumOf(ranks);
    for (std::size_t i = 0; i < sum.size(); ++i)
      EXPECT_PRED2(SameBits, sum[i], ReferenceSum(ranks, i)) << i;
  }
}

TEST_F(FixedPoint, IntegersWrap) {
  std::uint32_t sum = 0;
  std::vector<std::uint8_t> payload(4);
  for (const std::int32_t value : {std::numeric_limits<std::int32_t>::max(), 1, 1}) {
    phub_store32(payload.data(), static_cast<std::uint32_t>(value));
    phub_slot_add(&sum, payload.data(), 1, sum == 0);
  }
  EXPECT_EQ(static_cast<std::int32_t>(sum), std::numeric_limits<std::int32_t>::min() + 1);
}

}  // namespace
}  // namespace phub::aggregation
