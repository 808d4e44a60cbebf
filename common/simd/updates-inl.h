// The optimizers' updates, as epilogues of the loop in fold-inl.h. common/optimizer/optimizers.h
// has the formulas. Compiled once per instruction set, hence the toggled include guard. The code
// never uses hn::MulAdd: it rounds once, but every operation must round separately.
#if defined(PHUB_SIMD_UPDATES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PHUB_SIMD_UPDATES_INL_H_
#undef PHUB_SIMD_UPDATES_INL_H_
#else
#define PHUB_SIMD_UPDATES_INL_H_
#endif

#include <array>
#include <cstddef>

#include "common/optimizer/coefficients.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace phub::simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using optimizer::Coefficients;
using optimizer::kStatesMax;
using optimizer::Optimizer;

struct NoCopy {
  template <class D, class V>
  HWY_INLINE void operator()(D /*d*/, std::size_t /*i*/, V /*value*/) const {}
};

// The epilogue. Update receives lanes of the gradient and the parameters and returns the new
// parameters. It loads and stores its own state, such as momentum. Copy stores a second copy of the
// new parameters.
template <class T, bool kWeightDecay, class Update, class Copy = NoCopy>
struct UpdateParameters {
  const T* parameters;
  T* next;
  T weight_decay;
  Update update;
  Copy copy;
  template <class D, class V>
  HWY_INLINE void operator()(D d, std::size_t i, V gradient) const {
    const V old = hn::LoadU(d, parameters + i);
    if constexpr (kWeightDecay) {
      gradient = hn::Add(gradient, hn::Mul(hn::Set(d, weight_decay), old));
    }
    const V updated = update(d, i, gradient, old);
    hn::StoreU(updated, d, next + i);
    copy(d, i, updated);
  }
};

// Each update has two constants:
//   kFuses       whether a fused loop for folding and updating pays off (fold_update.cc)
//   kReadsState  whether the state must hold initial_state before the first step
template <class T>
using States = std::array<T*, kStatesMax>;

template <class T>
struct SgdUpdate {
  static constexpr bool kFuses = true;
  static constexpr bool kReadsState = false;
  T step_size;
  SgdUpdate(const Coefficients& from, const States<T>& /*states*/)
      : step_size(static_cast<T>(from.step_size)) {}
  template <class D, class V>
  HWY_INLINE V operator()(D d, std::size_t /*i*/, V gradient, V old) const {
    return hn::Sub(old, hn::Mul(hn::Set(d, step_size), gradient));
  }
};

template <class T, bool kNesterov, bool kFirstStep>
struct MomentumUpdate {
  static constexpr bool kFuses = !kFirstStep;
  static constexpr bool kReadsState = false;  // the first step sets it
  SgdUpdate<T> step;
  T* momentum;
  T decay;            // the hyper-parameter `momentum`
  T gradient_weight;  // 1 - dampening
  MomentumUpdate(const Coefficients& from, const States<T>& states)
      : step(from, states),
        momentum(states[0]),
        decay(static_cast<T>(from.decay)),
        gradient_weight(static_cast<T>(from.gradient_weight)) {}
  template <class D, class V>
  HWY_INLINE V operator()(D d, std::size_t i, V gradient, V old) const {
    V buffer = gradient;
    if constexpr (!kFirstStep) {
      const V kept = hn::Mul(hn::Set(d, decay), hn::LoadU(d, momentum + i));
      buffer = hn::Add(kept, hn::Mul(hn::Set(d, gradient_weight), gradient));
    }
    hn::StoreU(buffer, d, momentum + i);
    if constexpr (kNesterov) {
      return step(d, i, hn::Add(gradient, hn::Mul(hn::Set(d, decay), buffer)), old);
    } else {
      return step(d, i, buffer, old);
    }
  }
};

// Adam, and AdamW if parameter_scale is not 1. For Adam the multiplication by 1 changes nothing.
template <class T>
struct AdamUpdate {
  static constexpr bool kFuses = true;
  static constexpr bool kReadsState = true;
  T* first_moment;
  T* second_moment;
  T parameter_scale;
  T step_size;
  T decay;
  T gradient_weight;
  T square_decay;
  T square_weight;
  T square_correction;
  T epsilon;
  AdamUpdate(const Coefficients& from, const States<T>& states)
      : first_moment(states[0]),
        second_moment(states[1]),
        parameter_scale(static_cast<T>(from.parameter_scale)),
        step_size(static_cast<T>(from.step_size)),
        decay(static_cast<T>(from.decay)),
        gradient_weight(static_cast<T>(from.gradient_weight)),
        square_decay(static_cast<T>(from.square_decay)),
        square_weight(static_cast<T>(from.square_weight)),
        square_correction(static_cast<T>(from.square_correction)),
        epsilon(static_cast<T>(from.epsilon)) {}
  template <class D, class V>
  HWY_INLINE V operator()(D d, std::size_t i, V gradient, V old) const {
    const V kept_first = hn::Mul(hn::Set(d, decay), hn::LoadU(d, first_moment + i));
    const V first = hn::Add(kept_first, hn::Mul(hn::Set(d, gradient_weight), gradient));
    hn::StoreU(first, d, first_moment + i);
    const V kept_second = hn::Mul(hn::Set(d, square_decay), hn::LoadU(d, second_moment + i));
    const V square = hn::Mul(hn::Mul(hn::Set(d, square_weight), gradient), gradient);
    const V second = hn::Add(kept_second, square);
    hn::StoreU(second, d, second_moment + i);
    const V root = hn::Div(hn::Sqrt(second), hn::Set(d, square_correction));
    const V denominator = hn::Add(root, hn::Set(d, epsilon));
    const V change = hn::Div(hn::Mul(hn::Set(d, step_size), first), denominator);
    return hn::Sub(hn::Mul(hn::Set(d, parameter_scale), old), change);
  }
};

template <class T>
struct AdagradUpdate {
  static constexpr bool kFuses = false;
  static constexpr bool kReadsState = true;
  T* sum_of_squares;
  T step_size;
  T epsilon;
  AdagradUpdate(const Coefficients& from, const States<T>& states)
      : sum_of_squares(states[0]),
        step_size(static_cast<T>(from.step_size)),
        epsilon(static_cast<T>(from.epsilon)) {}
  template <class D, class V>
  HWY_INLINE V operator()(D d, std::size_t i, V gradient, V old) const {
    const V sum = hn::Add(hn::LoadU(d, sum_of_squares + i), hn::Mul(gradient, gradient));
    hn::StoreU(sum, d, sum_of_squares + i);
    const V denominator = hn::Add(hn::Sqrt(sum), hn::Set(d, epsilon));
    return hn::Sub(old, hn::Div(hn::Mul(hn::Set(d, step_size), gradient), denominator));
  }
};

template <class T, bool kMomentum, bool kCentered>
struct RmsPropUpdate {
  static constexpr bool kFuses = false;
  static constexpr bool kReadsState = true;
  T* square_average;
  T* second_state;  // the momentum, or the average of gradients
  T step_size;
  T square_decay;
  T square_weight;
  T decay;  // of second_state
  T gradient_weight;
  T epsilon;
  RmsPropUpdate(const Coefficients& from, const States<T>& states)
      : square_average(states[0]),
        second_state(states[1]),
        step_size(static_cast<T>(from.step_size)),
        square_decay(static_cast<T>(from.square_decay)),
        square_weight(static_cast<T>(from.square_weight)),
        decay(static_cast<T>(from.decay)),
        gradient_weight(static_cast<T>(from.gradient_weight)),
        epsilon(static_cast<T>(from.epsilon)) {}
  template <class D, class V>
  HWY_INLINE V operator()(D d, std::size_t i, V gradient, V old) const {
    const V kept = hn::Mul(hn::Set(d, square_decay), hn::LoadU(d, square_average + i));
    const V square = hn::Mul(hn::Mul(hn::Set(d, square_weight), gradient), gradient);
    V average = hn::Add(kept, square);
    hn::StoreU(average, d, square_average + i);
    if constexpr (kCentered) {
      const V kept_mean = hn::Mul(hn::Set(d, decay), hn::LoadU(d, second_state + i));
      const V mean = hn::Add(kept_mean, hn::Mul(hn::Set(d, gradient_weight), gradient));
      hn::StoreU(mean, d, second_state + i);
      average = hn::Sub(average, hn::Mul(mean, mean));
    }
    const V denominator = hn::Add(hn::Sqrt(average), hn::Set(d, epsilon));
    const V size = hn::Set(d, step_size);
    if constexpr (kMomentum) {
      const V kept_momentum = hn::Mul(hn::Set(d, decay), hn::LoadU(d, second_state + i));
      const V momentum = hn::Add(kept_momentum, hn::Div(gradient, denominator));
      hn::StoreU(momentum, d, second_state + i);
      return hn::Sub(old, hn::Mul(size, momentum));
    } else {
      return hn::Sub(old, hn::Div(hn::Mul(size, gradient), denominator));
    }
  }
};

// Calls visit.operator()<Update>() with the optimizer's update. The only list of update kernels.
template <class T, class Visit>
auto VisitUpdate(Optimizer optimizer, bool first_step, const Visit& visit) {
  using Result = decltype(visit.template operator()<SgdUpdate<T>>());
  switch (optimizer) {
    case Optimizer::kNone: break;
    case Optimizer::kSgd: return visit.template operator()<SgdUpdate<T>>();
    case Optimizer::kMomentum:
      return first_step ? visit.template operator()<MomentumUpdate<T, false, true>>()
                        : visit.template operator()<MomentumUpdate<T, false, false>>();
    case Optimizer::kNesterov:
      return first_step ? visit.template operator()<MomentumUpdate<T, true, true>>()
                        : visit.template operator()<MomentumUpdate<T, true, false>>();
    case Optimizer::kAdam:
    case Optimizer::kAdamW: return visit.template operator()<AdamUpdate<T>>();
    case Optimizer::kAdagrad: return visit.template operator()<AdagradUpdate<T>>();
    case Optimizer::kRmsProp: return visit.template operator()<RmsPropUpdate<T, false, false>>();
    case Optimizer::kRmsPropMomentum:
      return visit.template operator()<RmsPropUpdate<T, true, false>>();
    case Optimizer::kRmsPropCentered:
      return visit.template operator()<RmsPropUpdate<T, false, true>>();
  }
  return Result();
}

}  // namespace HWY_NAMESPACE
}  // namespace phub::simd
HWY_AFTER_NAMESPACE();

#endif  // toggled per target
