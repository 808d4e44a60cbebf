// Comparison of numbers that must be equal bit by bit. Pure functions.
#pragma once

#include <bit>
#include <cstdint>

namespace phub {

// -0 and 0 differ, because they affect a sum differently. A NaN equals itself.
constexpr bool SameBits(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

}  // namespace phub
