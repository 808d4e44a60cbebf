#include "common/aggregation/fixed_point.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

#include "common/base/check.h"

namespace phub::aggregation {
namespace {

constexpr std::uint32_t kMagnitude = 0x7fffffff;  // all bits of an f32 but the sign
constexpr int kFractionBits = 23;
constexpr std::uint32_t kQuietNan = 0x7fc00000;
}  // namespace

double FixedScale(std::uint8_t exponent, std::uint32_t ranks) {
  PHUB_CHECK(ranks >= 1 && ranks <= kFixedRanksMax, "ranks={}", ranks);
  // The power of two is exact, so there is one rounding.
  return std::ldexp(2147483647.0 / ranks, 126 - int{exponent});
}

std::uint8_t ExponentOf(std::span<const float> values) {
  std::uint32_t greatest = 0;  // magnitudes are ordered like their bits
  for (const float value : values)
    greatest = std::max(greatest, std::bit_cast<std::uint32_t>(value) & kMagnitude);
  return static_cast<std::uint8_t>(greatest >> kFractionBits);
}

void ToFixed(std::span<const float> values, std::uint8_t exponent, std::uint32_t ranks,
             std::span<std::int32_t> fixed) {
  PHUB_CHECK(values.size() == fixed.size(), "values={} fixed={}", values.size(), fixed.size());
  PHUB_CHECK(exponent >= ExponentOf(values), "exponent={}", exponent);
  if (exponent == kNotFinite) return std::fill(fixed.begin(), fixed.end(), 0);
  const double scale = FixedScale(exponent, ranks);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double scaled = static_cast<double>(values[i]) * scale;
    fixed[i] = static_cast<std::int32_t>((scaled + kFixedRounder) - kFixedRounder);
  }
}

void FromFixed(std::span<const std::int32_t> sum, std::uint8_t exponent, std::uint32_t ranks,
               std::span<float> result) {
  PHUB_CHECK(sum.size() == result.size(), "sum={} result={}", sum.size(), result.size());
  if (exponent == kNotFinite)
    return std::fill(result.begin(), result.end(), std::bit_cast<float>(kQuietNan));
  const double scale = FixedScale(exponent, ranks);
  for (std::size_t i = 0; i < sum.size(); ++i)
    result[i] = static_cast<float>(static_cast<double>(sum[i]) / scale);
}

}  // namespace phub::aggregation
