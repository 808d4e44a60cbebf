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

bool FoldHalfRangeKernel(const Combination& combination, const Terms& terms, Range range,
                         std::byte* output) {
  const bool narrows = combination.narrows;
  if (combination.wire == ElementType::kF16) {
    return narrows ? FoldAs<F16, F16>(combination, terms, range, output)
                   : FoldAs<F16, Plain<float>>(combination, terms, range, output);
  }
  // Stored as floats, Bf16Pairs would be 1.2 times as fast as Bf16 within the caches, but 0.8 times
  // as fast out of cache, where most folds that had to wait run (Zen 5).
  return narrows ? FoldAs<Bf16Pairs, Bf16Pairs>(combination, terms, range, output)
                 : FoldAs<Bf16, Plain<float>>(combination, terms, range, output);
}

}  // namespace HWY_NAMESPACE
}  // namespace phub::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace phub::simd {

HWY_EXPORT(FoldHalfRangeKernel);

bool FoldHalfRange(const Combination& combination, const Terms& terms, Range range,
                   std::byte* output) {
  return HWY_DYNAMIC_DISPATCH(FoldHalfRangeKernel)(combination, terms, range, output);
}

}  // namespace phub::simd
#endif  // HWY_ONCE
