// How the gradients of several ranks become one result, as rounds of pools state it on a lane. The
// values are those of simd::Reduction.
#pragma once

#include <cstdint>

namespace phub::numeric {

enum class Reduction : std::uint8_t { kSum, kMean, kMin, kMax, kProduct };

constexpr bool IsReduction(std::uint8_t value) {
  return value <= static_cast<std::uint8_t>(Reduction::kProduct);
}

}  // namespace phub::numeric
