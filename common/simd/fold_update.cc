// Folds and updates in one loop, for the most common rounds: f32 throughout, or f32 masters with
// half precision on the wire in both directions; a sum or a mean; an optimizer whose update has
// kFuses (updates-inl.h). Block by block, momentum on a sum of 4 takes 1.3 times as long within the
// caches, because each gradient is stored and loaded once more.
#include "common/base/check.h"
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

// A round of f32 whose terms are in Format.
template <class Format, class Copy>
struct Fusion {
  const Combination& combination;
  const Coefficients& coefficients;
  const Terms& terms;
  Range range;
  const RoundMemory& memory;
  Copy copy;

  template <class Update>
  bool Run(const Update& update) const {
    const float* const parameters = reinterpret_cast<const float*>(memory.parameters);
    float* const next = reinterpret_cast<float*>(memory.next_parameters);
    const float weight_decay = static_cast<float>(coefficients.weight_decay);
    if (coefficients.weight_decay == 0.0) {
      return AddTerms<Format>(
          combination, terms, range,
          UpdateParameters<float, false, Update, Copy>{parameters, next, 0.0f, update, copy});
    }
    return AddTerms<Format>(
        combination, terms, range,
        UpdateParameters<float, true, Update, Copy>{parameters, next, weight_decay, update, copy});
  }

  bool RunOf(Optimizer optimizer) const {
    States<float> states;
    for (std::size_t i = 0; i < kStatesMax; ++i) {
      states[i] = reinterpret_cast<float*>(memory.state[i]);
    }
    return VisitUpdate<float>(optimizer, coefficients.first_step, [&]<class Update>() {
      if constexpr (Update::kFuses) {
        return Run(Update(coefficients, states));
      } else {
        PHUB_CHECK(false, "optimizer={}", ToString(optimizer));
        return false;
      }
    });
  }
};

template <class Half>
bool FoldHalvesAndUpdate(const Combination& combination, Optimizer optimizer,
                         const Coefficients& coefficients, const Terms& terms, Range range,
                         const RoundMemory& memory) {
  const StoreAs<Half> copy{reinterpret_cast<typename Half::Element*>(memory.replies[0]), 0};
  return Fusion<Half, StoreAs<Half>>{combination, coefficients, terms, range, memory, copy}.RunOf(
      optimizer);
}

bool FoldAndUpdateKernel(const Combination& combination, Optimizer optimizer,
                         const Coefficients& coefficients, const Terms& terms, Range range,
                         const RoundMemory& memory) {
  if (combination.wire == ElementType::kF16) {
    return FoldHalvesAndUpdate<F16>(combination, optimizer, coefficients, terms, range, memory);
  } else if (combination.wire == ElementType::kBf16) {
    return FoldHalvesAndUpdate<Bf16Pairs>(combination, optimizer, coefficients, terms, range,
                                          memory);
  }
  return Fusion<Plain<float>, NoCopy>{combination, coefficients, terms, range, memory, {}}.RunOf(
      optimizer);
}

// A first step that must initialize state runs block by block instead.
bool HasFusedUpdate(Optimizer optimizer, bool first_step) {
  return VisitUpdate<float>(optimizer, first_step, [&]<class Update>() {
    return Update::kFuses && !(first_step && Update::kReadsState);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace phub::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace phub::simd {

HWY_EXPORT(FoldAndUpdateKernel);

bool CanFoldAndUpdate(const Round& round, const RoundMemory& memory) {
  const bool floats = round.type == ElementType::kF32 && round.wire == ElementType::kF32;
  const bool halves = round.type == ElementType::kF32 && numeric::IsHalf(round.wire) &&
                      round.reply == round.wire && memory.replies.size() == 1 &&
                      !memory.streams_results;
  const bool adds = round.reduction == Reduction::kSum || round.reduction == Reduction::kMean;
  const bool clips = round.arguments.clip_value > 0.0;
  if (!round.encoded.encoding.none()) return false;
  // The answer is the same for every instruction set.
  const bool updates =
      HWY_STATIC_DISPATCH(HasFusedUpdate)(round.optimizer, round.arguments.step == 1);
  return (floats || halves) && adds && !clips && updates;
}

bool FoldAndUpdate(const Combination& combination, Optimizer optimizer,
                   const Coefficients& coefficients, const Terms& terms, Range range,
                   const RoundMemory& memory) {
  return HWY_DYNAMIC_DISPATCH(FoldAndUpdateKernel)(combination, optimizer, coefficients, terms,
                                                   range, memory);
}

}  // namespace phub::simd
#endif  // HWY_ONCE
