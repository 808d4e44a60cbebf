#include "common/base/element_type.h"

namespace phub::numeric {

const char* ToString(ElementType type) {
  switch (type) {
    case ElementType::kF32: return "f32";
    case ElementType::kF16: return "f16";
    case ElementType::kBf16: return "bf16";
    case ElementType::kF64: return "f64";
    case ElementType::kI32: return "i32";
    case ElementType::kI64: return "i64";
    case ElementType::kU8: return "u8";
  }
  return "unknown";
}

std::optional<ElementType> ParseElementType(std::string_view name) {
  for (std::uint8_t value = 1; value <= kElementTypeMax; ++value) {
    const auto type = static_cast<ElementType>(value);
    if (name == ToString(type)) return type;
  }
  return std::nullopt;
}

}  // namespace phub::numeric
