// Folds of f16 and bf16, widened to f32.
#include "common/simd/blocks.h"

// This file is compiled once per instruction set: foreach_target.h includes it again for each, and
// must come before everything that depends on the target.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/simd/fold_halves.cc"
#include "hwy/foreach_target.h"
// clang-format on

#include "common/simd/fold-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace phub::simd {
namespace HWY_NAMESPACE {

template <class Half>
void FoldHalves(const Combination& combination, const Terms& terms, Range range,
                std::byte* output) {
  if (combination.narrows) {
    FoldAs<Half, Half>(combination, terms, range, output);
  } else {
    FoldAs<Half, Plain<float>>(combination, terms, range, output);
  }
}

void FoldHalfRangeKernel(const Combination& combination, const Terms& terms, Range range,
                         std::byte* output) {
  if (combination.wire == ElementType::kF16) {
    FoldHalves<F16>(combination, terms, range, output);
  } else {
    FoldHalves<Bf16>(combination, terms, range, output);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace phub::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace phub::simd {

HWY_EXPORT(FoldHalfRangeKernel);

void FoldHalfRange(const Combination& combination, const Terms& terms, Range range,
                   std::byte* output) {
  HWY_DYNAMIC_DISPATCH(FoldHalfRangeKernel)(combination, terms, range, output);
}

}  // namespace phub::simd
#endif  // HWY_ONCE
