// What can be done with a finished sum (see fold-inl.h for the contract of an epilogue and for the
// toggled guard). Multiplications and additions stay apart: hn::MulAdd would round once where
// kernels.h promises two roundings.
#if defined(PHUB_SIMD_EPILOGUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PHUB_SIMD_EPILOGUES_INL_H_
#undef PHUB_SIMD_EPILOGUES_INL_H_
#else
#define PHUB_SIMD_EPILOGUES_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace phub::simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

struct Store {
  float* output;
  template <class D, class V>
  HWY_INLINE void operator()(D d, std::size_t i, V value) const {
    hn::StoreU(value, d, output + i);
  }
};

template <class Next>
struct DivideThen {
  float divisor;
  Next next;
  template <class D, class V>
  HWY_INLINE void operator()(D d, std::size_t i, V value) const {
    next(d, i, hn::Div(value, hn::Set(d, divisor)));
  }
};

// Optimizers. Update is given the gradient and the parameters, both in lanes, and returns the new
// parameters; whatever else it keeps (momentum...) it loads and stores itself.
template <bool kWeightDecay, class Update>
struct UpdateParameters {
  float* parameters;
  float weight_decay;
  Update update;
  template <class D, class V>
  HWY_INLINE void operator()(D d, std::size_t i, V gradient) const {
    const V old = hn::LoadU(d, parameters + i);
    if constexpr (kWeightDecay) {
      gradient = hn::Add(gradient, hn::Mul(hn::Set(d, weight_decay), old));
    }
    hn::StoreU(update(d, i, gradient, old), d, parameters + i);
  }
};

struct SgdUpdate {
  float learning_rate;
  template <class D, class V>
  HWY_INLINE V operator()(D d, std::size_t /*i*/, V gradient, V old) const {
    return hn::Sub(old, hn::Mul(hn::Set(d, learning_rate), gradient));
  }
};

struct MomentumFirstUpdate {
  SgdUpdate step;
  float* momentum;
  template <class D, class V>
  HWY_INLINE V operator()(D d, std::size_t i, V gradient, V old) const {
    hn::StoreU(gradient, d, momentum + i);
    return step(d, i, gradient, old);
  }
};

struct MomentumUpdate {
  SgdUpdate step;
  float* momentum;
  float decay;            // the hyper-parameter called momentum
  float gradient_weight;  // 1 - dampening
  template <class D, class V>
  HWY_INLINE V operator()(D d, std::size_t i, V gradient, V old) const {
    const V kept = hn::Mul(hn::Set(d, decay), hn::LoadU(d, momentum + i));
    const V buffer = hn::Add(kept, hn::Mul(hn::Set(d, gradient_weight), gradient));
    hn::StoreU(buffer, d, momentum + i);
    return step(d, i, buffer, old);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace phub::simd
HWY_AFTER_NAMESPACE();

#endif  // toggled per target
