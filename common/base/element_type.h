// Element types of keys, and the types in which phub computes on them. Pure; any thread.
//
// A key has a parameter type and one wire type for each direction. Gradients and parameters may
// travel as bf16 or f16 while the daemon keeps f32 masters.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace phub::numeric {

enum class ElementType : std::uint8_t {
  kF32 = 1,
  kF16 = 2,   // IEEE 754 binary16
  kBf16 = 3,  // the upper half of a binary32
  kF64 = 4,
  kI32 = 5,
  kI64 = 6,
  kU8 = 7,
};
inline constexpr std::uint8_t kElementTypeMax = 7;

constexpr bool IsElementType(std::uint8_t value) { return value >= 1 && value <= kElementTypeMax; }

constexpr std::uint32_t ElementBytes(ElementType type) {
  switch (type) {
    case ElementType::kF64:
    case ElementType::kI64: return 8;
    case ElementType::kF32:
    case ElementType::kI32: return 4;
    case ElementType::kF16:
    case ElementType::kBf16: return 2;
    case ElementType::kU8: return 1;
  }
  return 0;
}

constexpr bool IsFloating(ElementType type) {
  return type != ElementType::kI32 && type != ElementType::kI64 && type != ElementType::kU8;
}
constexpr bool IsHalf(ElementType type) {
  return type == ElementType::kF16 || type == ElementType::kBf16;
}

// The type of accumulators (of sums, minima, products) and of optimizer state.
constexpr ElementType AccumulationType(ElementType type) {
  return IsHalf(type) ? ElementType::kF32 : type;
}

// Whether values of a key of type `parameter` may travel as `wire`: true for the same type, and
// for half-precision types of an f32 key.
constexpr bool IsWireTypeOf(ElementType wire, ElementType parameter) {
  return wire == parameter || (parameter == ElementType::kF32 && IsHalf(wire));
}

// "f32", "f16", "bf16", "f64", "i32", "i64", "u8"; static storage.
const char* ToString(ElementType type);
std::optional<ElementType> ParseElementType(std::string_view name);

}  // namespace phub::numeric
