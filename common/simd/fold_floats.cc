// Folds of f32 and f64.
#include "common/simd/blocks.h"

// This file is compiled once per instruction set: foreach_target.h includes it again for each, and
// must come before everything that depends on the target.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/simd/fold_floats.cc"
#include "hwy/foreach_target.h"
// clang-format on

#include "common/simd/fold-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace phub::simd {
namespace HWY_NAMESPACE {

void FoldFloatRangeKernel(const Combination& combination, const Terms& terms, Range range,
                          std::byte* output) {
  if (combination.wire == ElementType::kF32) {
    FoldAs<Plain<float>, Plain<float>>(combination, terms, range, output);
  } else {
    FoldAs<Plain<double>, Plain<double>>(combination, terms, range, output);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace phub::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace phub::simd {

HWY_EXPORT(FoldFloatRangeKernel);

void FoldFloatRange(const Combination& combination, const Terms& terms, Range range,
                    std::byte* output) {
  HWY_DYNAMIC_DISPATCH(FoldFloatRangeKernel)(combination, terms, range, output);
}

}  // namespace phub::simd
#endif  // HWY_ONCE
