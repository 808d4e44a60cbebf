// How the gradients of several ranks become one result. The values are those on the wire.
#pragma once

#include <cstdint>

namespace phub::numeric {

enum class Reduction : std::uint8_t { kSum, kMean, kMin, kMax, kProduct };

constexpr bool IsReduction(std::uint8_t value) {
  return value <= static_cast<std::uint8_t>(Reduction::kProduct);
}

constexpr const char* ToString(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum: return "sum";
    case Reduction::kMean: return "mean";
    case Reduction::kMin: return "min";
    case Reduction::kMax: return "max";
    case Reduction::kProduct: return "product";
  }
  return "unknown";
}

}  // namespace phub::numeric
