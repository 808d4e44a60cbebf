// Rounds a size up to a multiple of a unit.
#pragma once

#include <cstdint>

namespace phub {

// REQUIRES: unit > 0, and the result fits 64 bits.
constexpr std::uint64_t AlignUp(std::uint64_t bytes, std::uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace phub
