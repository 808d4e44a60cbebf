// The optimizers' updates, as epilogues of fold-inl.h's loop; optimizers.h defines them. Compiled
// once per instruction set, hence the toggled include guard. Multiplications and additions stay
// apart: hn::MulAdd would round once where two roundings are promised.
#if defined(PHUB_SIMD_UPDATES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PHUB_SIMD_UPDATES_INL_H_
#undef PHUB_SIMD_UPDATES_INL_H_
#else
#define PHUB_SIMD_UPDATES_INL_H_
#endif

#include <cstddef>

#include "common/simd/coefficients.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace phub::simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

struct NoCopy {
  template <class D, class V>
  HWY_INLINE void operator()(D /*d*/, std::size_t /*i*/, V /*value*/) const {}
};

// The epilogue: Update is given the gradient and the parameters, both in lanes, and returns the new
// parameters; whatever else it keeps (momentum...) it loads and stores itself. Copy stores the new
// parameters once more.
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

template <class T>
struct SgdUpdate {
  T step_size;
  explicit SgdUpdate(const Coefficients& from) : step_size(static_cast<T>(from.step_size)) {}
  template <class D, class V>
  HWY_INLINE V operator()(D d, std::size_t /*i*/, V gradient, V old) const {
    return hn::Sub(old, hn::Mul(hn::Set(d, step_size), gradient));
  }
};

template <class T, bool kNesterov, bool kFirstStep>
struct MomentumUpdate {
  SgdUpdate<T> step;
  T* momentum;
  T decay;            // the hyper-parameter called momentum
  T gradient_weight;  // 1 - dampening
  MomentumUpdate(const Coefficients& from, T* state)
      : step(from),
        momentum(state),
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

// Adam; with a parameter_scale that is not 1, AdamW. (Multiplying by 1 changes nothing.)
template <class T>
struct AdamUpdate {
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
  AdamUpdate(const Coefficients& from, T* first, T* second)
      : first_moment(first),
        second_moment(second),
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
  T* sum_of_squares;
  T step_size;
  T epsilon;
  AdagradUpdate(const Coefficients& from, T* state)
      : sum_of_squares(state),
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

}  // namespace HWY_NAMESPACE
}  // namespace phub::simd
HWY_AFTER_NAMESPACE();

#endif  // toggled per target
