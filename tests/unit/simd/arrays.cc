#include "tests/unit/simd/arrays.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/support/simd_reference.h"

namespace phub::simd {
namespace {

std::uint64_t BitsAt(ElementType type, const std::byte* array, std::size_t i) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, array + i * numeric::ElementBytes(type), numeric::ElementBytes(type));
  return bits;
}

bool IsNanAt(ElementType type, const std::byte* array, std::size_t i) {
  if (!numeric::IsFloating(type)) return false;
  if (type == ElementType::kF64) return std::isnan(reference::At<double>(array, i));
  return std::isnan(reference::Load<float>(type, array, i));
}

double OrdinaryNumber(SeededRandom& random) {
  const double mantissa = static_cast<double>(random.Below(1ull << 52)) * 0x1p-52 + 0.5;
  const double magnitude = std::ldexp(mantissa, static_cast<int>(random.Below(16)) - 8);
  return random.Chance(1, 2) ? magnitude : -magnitude;
}

}  // namespace

bool Array::MarginsAreUntouched() const {
  const auto untouched = [](std::byte value) { return value == kUntouched; };
  const auto begin = storage_.begin();
  return std::all_of(begin, begin + static_cast<std::ptrdiff_t>(offset_), untouched) &&
         std::all_of(begin + static_cast<std::ptrdiff_t>(offset_ + bytes_), storage_.end(),
                     untouched);
}

std::vector<std::uint64_t> SpecialBits(ElementType type) {
  switch (type) {
    case ElementType::kF32:
      return {0,          0x80000000, 0x3f800000, 0xbf800000, 0x7f7fffff, 0xff7fffff, 0x7f800000,
              0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001, 0xff923456, 0x00000001, 0x80000001,
              0x007fffff, 0x807fffff, 0x00800000, 0x80800000, 0x477fefff, 0x477ff000, 0x33000000};
    case ElementType::kF16:
      return {0,      0x8000, 0x3c00, 0xbc00, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00,
              0xfe00, 0x7c01, 0xfd23, 0x0001, 0x8001, 0x03ff, 0x83ff, 0x0400, 0x8400};
    case ElementType::kBf16:
      return {0,      0x8000, 0x3f80, 0xbf80, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0,
              0xffc0, 0x7f81, 0xff9a, 0x0001, 0x8001, 0x007f, 0x807f, 0x0080, 0x8080};
    case ElementType::kF64:
      return {0,
              1ull << 63,
              0x3ff0000000000000,
              0xbff0000000000000,
              0x7fefffffffffffff,
              0xffefffffffffffff,
              0x7ff0000000000000,
              0xfff0000000000000,
              0x7ff8000000000000,
              0xfff8000000000000,
              0x7ff0000000000001,
              0xfff123456789abcd,
              1,
              0x8000000000000001,
              0x000fffffffffffff,
              0x0010000000000000};
    case ElementType::kI32: return {0, 1, 0xffffffff, 0x7fffffff, 0x80000000, 0x80000001};
    case ElementType::kI64:
      return {0,       1,          ~0ull,      ~0ull >> 1,         1ull << 63,
              1 << 16, 0x7fffffff, 0xffffffff, 0x0000000100000000, 0xffffffff00000000};
    case ElementType::kU8: return {0, 1, 2, 0x7f, 0x80, 0xfe, 0xff};
  }
  return {};
}

void FillRandom(ElementType type, Content content, SeededRandom& random, Array& array) {
  const std::size_t element_bytes = numeric::ElementBytes(type);
  const std::vector<std::uint64_t> special = SpecialBits(type);
  for (std::size_t i = 0; i < array.bytes() / element_bytes; ++i) {
    if (content == Content::kOrdinary && numeric::IsFloating(type)) {
      const double value = OrdinaryNumber(random);
      if (type == ElementType::kF64) {
        reference::Put(array.data(), i, value);
      } else {
        reference::Store(type, array.data(), i, static_cast<float>(value));
      }
      continue;
    }
    const bool is_special = content == Content::kAnyBits && random.Chance(1, 2);
    const std::uint64_t bits = is_special ? special[random.Below(special.size())] : random.Next();
    std::memcpy(array.data() + i * element_bytes, &bits, element_bytes);
  }
}

std::size_t FirstDifference(ElementType type, const std::byte* actual, const std::byte* expected,
                            std::size_t count, bool any_nan) {
  const std::size_t element_bytes = numeric::ElementBytes(type);
  if (count == 0 || std::memcmp(actual, expected, count * element_bytes) == 0) return count;
  for (std::size_t i = 0; i < count; ++i) {
    if (BitsAt(type, actual, i) == BitsAt(type, expected, i)) continue;
    if (any_nan && IsNanAt(type, actual, i) && IsNanAt(type, expected, i)) continue;
    return i;
  }
  return count;
}

}  // namespace phub::simd
