// Reductions: combine a term with the running value, in lanes of the accumulation type. Compiled
// once per instruction set, hence the toggled include guard.
//
//   First(d, term) -> Vec<D>: the running value at the start of a fold
//   Combine(d, running, next) -> Vec<D>
// First() returns a running value unchanged, which lets a fold continue another fold's result.
#if defined(PHUB_SIMD_REDUCTIONS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PHUB_SIMD_REDUCTIONS_INL_H_
#undef PHUB_SIMD_REDUCTIONS_INL_H_
#else
#define PHUB_SIMD_REDUCTIONS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/simd/formats-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace phub::simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class D>
inline constexpr bool kIsFloating = std::is_floating_point_v<hn::TFromD<D>>;

struct TakesFirst {
  template <class D, class V>
  static HWY_INLINE V First(D /*d*/, V term) {
    return term;
  }
};

struct Sum : TakesFirst {
  template <class D, class V>
  static HWY_INLINE V Combine(D /*d*/, V running, V next) {
    return hn::Add(running, next);
  }
};

struct Product : TakesFirst {
  template <class D, class V>
  static HWY_INLINE V Combine(D d, V running, V next) {
    using T = hn::TFromD<D>;
    if constexpr (sizeof(T) != 1) {
      return hn::Mul(running, next);
    } else if constexpr (hn::MaxLanes(D()) == 1) {
      const unsigned product = unsigned{hn::GetLane(running)} * unsigned{hn::GetLane(next)};
      return hn::Set(d, static_cast<T>(product));
    } else {
      // Bytes are multiplied in pairs: the lower byte in place, the upper byte shifted down.
      const hn::Repartition<std::uint16_t, D> d16;
      const auto running16 = hn::BitCast(d16, running);
      const auto next16 = hn::BitCast(d16, next);
      const auto lower = hn::Mul(running16, next16);
      const auto upper = hn::Mul(hn::ShiftRight<8>(running16), hn::ShiftRight<8>(next16));
      const auto low_bytes = hn::And(lower, hn::Set(d16, std::uint16_t{0xff}));
      return hn::BitCast(d, hn::Or(low_bytes, hn::ShiftLeft<8>(upper)));
    }
  }
};

struct BitwiseAnd : TakesFirst {
  template <class D, class V>
  static HWY_INLINE V Combine(D /*d*/, V running, V next) {
    return hn::And(running, next);
  }
};
struct BitwiseOr : TakesFirst {
  template <class D, class V>
  static HWY_INLINE V Combine(D /*d*/, V running, V next) {
    return hn::Or(running, next);
  }
};
struct BitwiseXor : TakesFirst {
  template <class D, class V>
  static HWY_INLINE V Combine(D /*d*/, V running, V next) {
    return hn::Xor(running, next);
  }
};

// The minimum and maximum operations of IEEE 754-2019. The x86 instructions of that name differ:
// for two zeros or a NaN, their result depends on the order of operands.
template <bool kMaximum>
struct Extremum {
  template <class D, class V>
  static HWY_INLINE V First(D d, V term) {
    if constexpr (kIsFloating<D>) {
      return NanMadeCanonical(d, term);
    } else {
      return term;
    }
  }
  template <class D, class V>
  static HWY_INLINE V Combine(D d, V running, V next) {
    if constexpr (!kIsFloating<D>) {
      return kMaximum ? hn::Max(running, next) : hn::Min(running, next);
    } else {
      const auto keep = kMaximum ? hn::Gt(running, next) : hn::Lt(running, next);
      const V unequal = hn::IfThenElse(keep, running, next);
      // Equal numbers have equal bits, except for the sign of zero.
      const V equal = kMaximum ? hn::And(running, next) : hn::Or(running, next);
      const V number = hn::IfThenElse(hn::Eq(running, next), equal, unequal);
      // `number` already holds a NaN of `next`, but not one of `running`, which is canonical.
      const V whole = hn::IfThenElse(hn::Eq(running, running), number, running);
      return NanMadeCanonical(d, whole);
    }
  }
};
using Minimum = Extremum<false>;
using Maximum = Extremum<true>;

}  // namespace HWY_NAMESPACE
}  // namespace phub::simd
HWY_AFTER_NAMESPACE();

#endif  // toggled per target
