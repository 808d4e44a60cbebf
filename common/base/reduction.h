// How the gradients of several ranks become one result. The values are those on the wire.
#pragma once

#include <cstdint>

#include "common/base/element_type.h"

namespace phub::numeric {

enum class Reduction : std::uint8_t {
  kSum,
  kMean,
  kMin,
  kMax,
  kProduct,
  kBitwiseAnd,
  kBitwiseOr,
  kBitwiseXor
};

constexpr bool IsReduction(std::uint8_t value) {
  return value <= static_cast<std::uint8_t>(Reduction::kBitwiseXor);
}

constexpr bool IsBitwise(Reduction reduction) { return reduction >= Reduction::kBitwiseAnd; }

// A mean of integers may be fractional, and floating-point numbers have no bitwise operations.
constexpr bool IsReductionOf(Reduction reduction, ElementType type) {
  return IsFloating(type) ? !IsBitwise(reduction) : reduction != Reduction::kMean;
}

constexpr const char* ToString(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum: return "sum";
    case Reduction::kMean: return "mean";
    case Reduction::kMin: return "min";
    case Reduction::kMax: return "max";
    case Reduction::kProduct: return "product";
    case Reduction::kBitwiseAnd: return "bitwise and";
    case Reduction::kBitwiseOr: return "bitwise or";
    case Reduction::kBitwiseXor: return "bitwise xor";
  }
  return "unknown";
}

}  // namespace phub::numeric
