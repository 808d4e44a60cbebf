// Folds of integers, which wrap.
#include "common/simd/blocks.h"

// This file is compiled once per instruction set: foreach_target.h includes it again for each, and
// must come before everything that depends on the target.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/simd/fold_integers.cc"
#include "hwy/foreach_target.h"
// clang-format on

#include "common/simd/fold-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace phub::simd {
namespace HWY_NAMESPACE {

void FoldIntegerRangeKernel(const Combination& combination, const Terms& terms, Range range,
                            std::byte* output) {
  if (combination.wire == ElementType::kI32) {
    FoldAs<Plain<std::int32_t>, Plain<std::int32_t>>(combination, terms, range, output);
  } else if (combination.wire == ElementType::kI64) {
    FoldAs<Plain<std::int64_t>, Plain<std::int64_t>>(combination, terms, range, output);
  } else {
    FoldAs<Plain<std::uint8_t>, Plain<std::uint8_t>>(combination, terms, range, output);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace phub::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace phub::simd {

HWY_EXPORT(FoldIntegerRangeKernel);

void FoldIntegerRange(const Combination& combination, const Terms& terms, Range range,
                      std::byte* output) {
  HWY_DYNAMIC_DISPATCH(FoldIntegerRangeKernel)(combination, terms, range, output);
}

}  // namespace phub::simd
#endif  // HWY_ONCE
