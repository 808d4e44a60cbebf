// Clipping and optimizer updates of a block that is already combined.
#include <algorithm>

#include "common/simd/blocks.h"

// This file is compiled once per instruction set: foreach_target.h includes it again for each, and
// must come before everything that depends on the target.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/simd/update.cc"
#include "hwy/foreach_target.h"
// clang-format on

#include "common/simd/fold-inl.h"
#include "common/simd/updates-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace phub::simd {
namespace HWY_NAMESPACE {

template <class T>
struct ClipAndStore {
  T clip_value;
  T* output;
  template <class D, class V>
  HWY_INLINE void operator()(D d, std::size_t i, V value) const {
    const V upper = hn::Set(d, clip_value);
    const V lower = hn::Neg(upper);
    const V capped = hn::IfThenElse(hn::Gt(value, upper), upper, value);  // false for a NaN
    hn::StoreU(hn::IfThenElse(hn::Lt(capped, lower), lower, capped), d, output + i);
  }
};

// Runs an epilogue over one array.
template <class T, class Epilogue>
void ForEach(const std::byte* array, std::size_t count, const Epilogue& epilogue) {
  const From<Plain<T>> first{reinterpret_cast<const T*>(array), 0};
  FoldPass<Plain<T>, Sum>(first, Rows(), Range{0, count}, epilogue);
}

template <class T>
void ClipAs(double clip_value, std::byte* gradient, std::size_t count) {
  const ClipAndStore<T> epilogue{static_cast<T>(clip_value), reinterpret_cast<T*>(gradient)};
  ForEach<T>(gradient, count, epilogue);
}

void ClipKernel(ElementType accumulation, double clip_value, std::byte* gradient,
                std::size_t count) {
  if (accumulation == ElementType::kF32) {
    ClipAs<float>(clip_value, gradient, count);
  } else {
    ClipAs<double>(clip_value, gradient, count);
  }
}

template <class T, class Update>
void Apply(const Coefficients& coefficients, const UpdateArrays& arrays, std::size_t count,
           const Update& update) {
  const T* const parameters = reinterpret_cast<const T*>(arrays.parameters);
  T* const next = reinterpret_cast<T*>(arrays.next);
  const T weight_decay = static_cast<T>(coefficients.weight_decay);
  if (coefficients.weight_decay == 0.0) {
    const UpdateParameters<T, false, Update> epilogue{parameters, next, T{0}, update, {}};
    ForEach<T>(arrays.gradient, count, epilogue);
  } else {
    const UpdateParameters<T, true, Update> epilogue{parameters, next, weight_decay, update, {}};
    ForEach<T>(arrays.gradient, count, epilogue);
  }
}

template <class T, class Update>
void UpdateBy(Optimizer optimizer, const Coefficients& coefficients, const UpdateArrays& arrays,
              std::size_t count) {
  States<T> states;
  for (std::size_t i = 0; i < kStatesMax; ++i) states[i] = reinterpret_cast<T*>(arrays.state[i]);
  if (Update::kReadsState && coefficients.first_step) {
    const T initial = static_cast<T>(coefficients.initial_state);
    const std::size_t state_count = StateCount(optimizer);
    for (std::size_t i = 0; i < state_count; ++i) std::fill_n(states[i], count, initial);
  }
  Apply<T>(coefficients, arrays, count, Update(coefficients, states));
}

template <class T>
void UpdateAs(Optimizer optimizer, const Coefficients& coefficients, const UpdateArrays& arrays,
              std::size_t count) {
  VisitUpdate<T>(optimizer, coefficients.first_step, [&]<class Update>() {
    UpdateBy<T, Update>(optimizer, coefficients, arrays, count);
  });
}

void UpdateKernel(ElementType accumulation, Optimizer optimizer, const Coefficients& coefficients,
                  const UpdateArrays& arrays, std::size_t count) {
  if (accumulation == ElementType::kF32) {
    UpdateAs<float>(optimizer, coefficients, arrays, count);
  } else {
    UpdateAs<double>(optimizer, coefficients, arrays, count);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace phub::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace phub::simd {

HWY_EXPORT(ClipKernel);
HWY_EXPORT(UpdateKernel);

void ClipGradient(ElementType accumulation, double clip_value, std::byte* gradient,
                  std::size_t count) {
  HWY_DYNAMIC_DISPATCH(ClipKernel)(accumulation, clip_value, gradient, count);
}

void Update(ElementType accumulation, Optimizer optimizer, const Coefficients& coefficients,
            const UpdateArrays& arrays, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(UpdateKernel)(accumulation, optimizer, coefficients, arrays, count);
}

}  // namespace phub::simd
#endif  // HWY_ONCE
