// Fold and update in one loop, for what most jobs do most of the time: f32 throughout, a sum or a
// mean, an optimizer of the SGD family. (Within the caches, momentum on a sum of 4 takes 1.3 times
// as long block by block, because each gradient is stored and loaded once more; with Adam's
// divisions and roots, or conversions, in between, that no longer shows.)
#include "common/simd/blocks.h"

// This file is compiled once per instruction set: foreach_target.h includes it again for each, and
// must come before everything that depends on the target.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/simd/fold_update.cc"
#include "hwy/foreach_target.h"
// clang-format on

#include "common/simd/fold-inl.h"
#include "common/simd/updates-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace phub::simd {
namespace HWY_NAMESPACE {

template <class Epilogue>
bool FoldThen(const Combination& combination, const Terms& terms, Range range,
              const Epilogue& epilogue) {
  if (combination.reduction == Reduction::kSum) {
    return FoldTerms<Plain<float>, Sum>(terms, range, epilogue);
  }
  const auto divisor = static_cast<float>(combination.divisor);
  return FoldTerms<Plain<float>, Sum>(terms, range, DivideThen<float, Epilogue>{divisor, epilogue});
}

template <class Update>
bool FoldThenUpdate(const Combination& combination, const Coefficients& coefficients,
                    const Terms& terms, Range range, const RoundMemory& memory,
                    const Update& update) {
  const float* const parameters = reinterpret_cast<const float*>(memory.parameters);
  float* const next = reinterpret_cast<float*>(memory.next_parameters);
  const float weight_decay = static_cast<float>(coefficients.weight_decay);
  if (coefficients.weight_decay == 0.0) {
    return FoldThen(combination, terms, range,
                    UpdateParameters<float, false, Update>{parameters, next, 0.0f, update});
  }
  return FoldThen(combination, terms, range,
                  UpdateParameters<float, true, Update>{parameters, next, weight_decay, update});
}

bool FoldAndUpdateKernel(const Combination& combination, Optimizer optimizer,
                         const Coefficients& coefficients, const Terms& terms, Range range,
                         const RoundMemory& memory) {
  float* const state = reinterpret_cast<float*>(memory.state[0]);
  if (optimizer == Optimizer::kSgd) {
    return FoldThenUpdate(combination, coefficients, terms, range, memory,
                          SgdUpdate<float>(coefficients));
  } else if (optimizer == Optimizer::kMomentum) {
    return FoldThenUpdate(combination, coefficients, terms, range, memory,
                          MomentumUpdate<float, false, false>(coefficients, state));
  }
  return FoldThenUpdate(combination, coefficients, terms, range, memory,
                        MomentumUpdate<float, true, false>(coefficients, state));
}

}  // namespace HWY_NAMESPACE
}  // namespace phub::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace phub::simd {

HWY_EXPORT(FoldAndUpdateKernel);

bool CanFoldAndUpdate(const Round& round) {
  const bool floats = round.wire == ElementType::kF32 && round.type == ElementType::kF32;
  const bool adds = round.reduction == Reduction::kSum || round.reduction == Reduction::kMean;
  const bool clips = round.arguments.clip_value > 0.0;
  const bool has_buffer =
      round.optimizer == Optimizer::kMomentum || round.optimizer == Optimizer::kNesterov;
  const bool updates =
      round.optimizer == Optimizer::kSgd || (has_buffer && round.arguments.step > 1);
  return floats && adds && !clips && updates;
}

bool FoldAndUpdate(const Combination& combination, Optimizer optimizer,
                   const Coefficients& coefficients, const Terms& terms, Range range,
                   const RoundMemory& memory) {
  return HWY_DYNAMIC_DISPATCH(FoldAndUpdateKernel)(combination, optimizer, coefficients, terms,
                                                   range, memory);
}

}  // namespace phub::simd
#endif  // HWY_ONCE
