// Conversions between an element type in memory and lanes of its accumulation type. Compiled once
// per instruction set, hence the toggled include guard.
//
//   using Element, using Accumulation
//   Load(d, const Element* at) -> Vec<D>, where D is a tag of Accumulation: exact, except that a
//     NaN may become another NaN
//   Narrow(d, value) -> a vector of Elements, rounded to nearest even if Element is narrower
//   Store(d, value, Element* at): Narrow, then store (StoreNarrowed)
//
//   StoreOrdinary(d, value0, ..., value3, Element* at) -> bool, only if an instruction set has a
//     faster way: narrows and stores four vectors. If a value is NaN or infinite, and possibly in
//     other cases, it returns false without effect.
//
// Implementations:
// - bf16: integer operations, or the instructions of x86 if the processor has them
//   (Bf16Instructions).
// - f16: the F16C instructions on x86 (exact, the instruction sets the rounding, denormals kept in
//   any mode). Otherwise integers and two float operations, which are exact or round as IEEE 754
//   specifies.
// Highway's DemoteTo is used only with F16C: it truncates to bf16, and to f16 without F16C.
#if defined(PHUB_SIMD_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PHUB_SIMD_FORMATS_INL_H_
#undef PHUB_SIMD_FORMATS_INL_H_
#else
#define PHUB_SIMD_FORMATS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace phub::simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class V, class Element>
HWY_INLINE void StoreNarrowed(V narrowed, Element* at) {
  hn::StoreU(narrowed, hn::DFromV<V>(), at);
}

// f32, f64 and integers: no conversion.
template <class T>
struct Plain {
  using Element = T;
  using Accumulation = T;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const T* at) {
    return hn::LoadU(d, at);
  }
  template <class D, class V>
  static HWY_INLINE V Narrow(D /*d*/, V value) {
    return value;
  }
  template <class D, class V>
  static HWY_INLINE void Store(D d, V value, T* at) {
    StoreNarrowed(Narrow(d, value), at);
  }
};

// Loads the bits of one half-precision value per lane.
template <class D>
HWY_INLINE hn::Vec<hn::Rebind<std::uint16_t, D>> LoadHalves(D d, const std::uint16_t* at) {
  return hn::LoadU(hn::Rebind<std::uint16_t, decltype(d)>(), at);
}

// Zero-extends half-precision bits to 32 bits. Signed, because only signed comparisons exist on
// every instruction set; all values compared below are under 2^31.
template <class D, class V>
HWY_INLINE hn::Vec<hn::Rebind<std::int32_t, D>> BitsOfHalves(D d, V halves) {
  return hn::PromoteTo(hn::Rebind<std::int32_t, decltype(d)>(), halves);
}

// The lower 16 bits of each lane. REQUIRES: the upper bits are 0.
template <class D, class V>
HWY_INLINE hn::Vec<hn::Rebind<std::uint16_t, D>> HalfBits(D d, V bits) {
  const hn::Rebind<std::uint16_t, decltype(d)> d16;
  const hn::Rebind<std::uint32_t, decltype(d)> d32;
  return hn::TruncateTo(d16, hn::BitCast(d32, bits));
}

template <class D>
HWY_INLINE hn::Vec<D> CanonicalNan(D d) {
  const hn::RebindToUnsigned<D> bits;
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    return hn::BitCast(d, hn::Set(bits, 0x7fc00000u));
  } else {
    return hn::BitCast(d, hn::Set(bits, std::uint64_t{0x7ff8} << 48));
  }
}

template <class D, class V>
HWY_INLINE V NanMadeCanonical(D d, V value) {
  return hn::IfThenElse(hn::Eq(value, value), value, CanonicalNan(d));
}

// bits >> kDropped, rounded to nearest even. A carry out of the fraction increments the exponent,
// which is correct.
template <int kDropped, class D, class V>
HWY_INLINE V RoundShiftRight(D d, V bits) {
  const V odd = hn::And(hn::ShiftRight<kDropped>(bits), hn::Set(d, 1));
  const V almost_half = hn::Set(d, (1 << (kDropped - 1)) - 1);
  return hn::ShiftRight<kDropped>(hn::Add(bits, hn::Add(almost_half, odd)));
}

inline constexpr std::int32_t kMagnitudeMask = 0x7fffffff;
inline constexpr std::int32_t kInfinityBits = 0x7f800000;

// Conversions to bf16 with AVX512_BF16, which is not a target of Highway. They round like Bf16,
// except that they flush denormals in any mode and keep NaN payloads.
#if HWY_TARGET == HWY_AVX3
struct Bf16Instructions {
  static HWY_INLINE bool Exist() { return __builtin_cpu_supports("avx512bf16") != 0; }
  static HWY_INLINE hn::Vec256<std::uint16_t> Narrow(hn::Vec512<float> value) {
    __m256i halves;
    asm("vcvtneps2bf16 %1, %0" : "=v"(halves) : "v"(value.raw));
    return hn::Vec256<std::uint16_t>{halves};
  }
  // Narrows both; the elements of `lower` come first.
  static HWY_INLINE hn::Vec512<std::uint16_t> Narrow(hn::Vec512<float> upper,
                                                     hn::Vec512<float> lower) {
    __m512i halves;
    asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(halves) : "v"(lower.raw), "v"(upper.raw));
    return hn::Vec512<std::uint16_t>{halves};
  }
};

// Classes of floats, encoded as in VFPCLASSPS.
inline constexpr int kNan = 0x01 | 0x80;               // quiet, signaling
inline constexpr int kNonFinite = kNan | 0x08 | 0x10;  // NaNs and both infinities
inline constexpr int kDenormal = 0x20;

template <int kClasses>
HWY_INLINE bool AnyIs(hn::Vec512<float> value) {
  return _mm512_fpclass_ps_mask(value.raw, kClasses) != 0;
}
template <int kClasses>
HWY_INLINE bool AnyIs(hn::Vec512<float> value0, hn::Vec512<float> value1, hn::Vec512<float> value2,
                      hn::Vec512<float> value3) {
  const auto is = [](hn::Vec512<float> value)
                      HWY_ATTR { return _mm512_fpclass_ps_mask(value.raw, kClasses); };
  const __mmask16 is01 = _kor_mask16(is(value0), is(value1));
  const __mmask16 is23 = _kor_mask16(is(value2), is(value3));
  return _kortestz_mask16_u8(is01, is23) == 0;
}
#endif

struct Bf16 {
  using Element = std::uint16_t;
  using Accumulation = float;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::uint16_t* at) {
    return hn::BitCast(d, hn::ShiftLeft<16>(BitsOfHalves(d, LoadHalves(d, at))));
  }
  // The upper 16 bits are the bf16 value; the caller drops the lower ones.
  template <class D, class V>
  static HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> Rounded(D d, V value) {
    // A carry never reaches the sign: except for NaNs, the largest magnitude is that of infinity,
    // 0x7f80'0000.
    const hn::RebindToUnsigned<D> d32;
    const auto bits = hn::BitCast(d32, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fffu)));
    const auto number = hn::BitCast(d, rounded);
    return hn::BitCast(d32, hn::IfThenElse(hn::Eq(value, value), number, CanonicalNan(d)));
  }
  template <class D, class V>
  static HWY_INLINE hn::Vec<hn::Rebind<std::uint16_t, D>> Narrow(D d, V value) {
#if HWY_TARGET == HWY_AVX3
    if constexpr (std::is_same_v<V, hn::Vec512<float>>) {
      const bool exact = Bf16Instructions::Exist() && !AnyIs<kNan | kDenormal>(value);
      if (HWY_LIKELY(exact)) return Bf16Instructions::Narrow(value);
    }
#endif
    return HalfBits(d, hn::ShiftRight<16>(Rounded(d, value)));
  }
  template <class D, class V>
  static HWY_INLINE void Store(D d, V value, std::uint16_t* at) {
    StoreNarrowed(Narrow(d, value), at);
  }
};

// Bf16 for sums of several rows. It loads two vectors at a time: the elements at even places and
// those at odd places. That takes a shift and a mask, whereas widening in order takes two shuffles
// and two shifts. Finished values are reordered once for all rows, or narrowed in pairs.
#if HWY_TARGET != HWY_SCALAR
struct Bf16Pairs : Bf16 {
  template <class D>
  static HWY_INLINE void LoadPair(D d, const std::uint16_t* at, hn::Vec<D>& even, hn::Vec<D>& odd) {
    const hn::Repartition<std::uint16_t, decltype(d)> d16;
    const hn::RebindToUnsigned<decltype(d)> d32;
    const auto both = hn::BitCast(d32, hn::LoadU(d16, at));
    even = hn::BitCast(d, hn::ShiftLeft<16>(both));
    odd = hn::BitCast(d, hn::And(both, hn::Set(d32, 0xffff0000u)));
  }
  template <class D, class V>
  static HWY_INLINE hn::Vec<hn::Repartition<std::uint16_t, D>> NarrowPair(D d, V even, V odd) {
    const hn::RebindToUnsigned<D> d32;
    const auto upper = hn::And(Rounded(d, odd), hn::Set(d32, 0xffff0000u));
    const auto both = hn::Or(hn::ShiftRight<16>(Rounded(d, even)), upper);
    return hn::BitCast(hn::Repartition<std::uint16_t, D>(), both);
  }
#if HWY_TARGET == HWY_AVX3
  template <class D, class V>
  static HWY_INLINE bool StoreOrdinary(D /*d*/, V even0, V odd0, V even1, V odd1,
                                       std::uint16_t* at) {
    if (!Bf16Instructions::Exist()) return false;
    if (HWY_UNLIKELY((AnyIs<kNonFinite | kDenormal>(even0, odd0, even1, odd1)))) return false;
    const hn::ScalableTag<std::uint16_t> d16;
    const auto place = hn::Iota(d16, std::uint16_t{0});
    const auto upper = hn::And(hn::ShiftLeft<4>(place), hn::Set(d16, std::uint16_t{16}));
    const auto from = hn::Add(hn::ShiftRight<1>(place), upper);  // 0, 16, 1, 17, ...
    const auto zip = [&](hn::Vec512<std::uint16_t> halves) HWY_ATTR {
      return hn::Vec512<std::uint16_t>{_mm512_permutexvar_epi16(from.raw, halves.raw)};
    };
    StoreNarrowed(zip(Bf16Instructions::Narrow(odd0, even0)), at);
    StoreNarrowed(zip(Bf16Instructions::Narrow(odd1, even1)), at + hn::Lanes(d16));
    return true;
  }
#endif
};

// Splits two vectors in element order into even and odd places.
template <class D, class V>
HWY_INLINE void PutApart(D d, V& value0, V& value1) {
  const V even = hn::ConcatEven(d, value1, value0);
  value1 = hn::ConcatOdd(d, value1, value0);
  value0 = even;
}

// The inverse of PutApart.
template <class D, class V>
HWY_INLINE void PutInOrder(D d, V& value0, V& value1) {
  const hn::RebindToUnsigned<D> d32;
  const auto place = hn::Iota(d32, 0u);
  const V even = value0;
#if HWY_TARGET == HWY_AVX3
  // Selects from both vectors: indices from 16 on select from the second.
  const auto odd_place = hn::And(hn::ShiftLeft<4>(place), hn::Set(d32, 16u));
  const auto lower = hn::Add(hn::ShiftRight<1>(place), odd_place);
  const auto upper = hn::Add(lower, hn::Set(d32, 8u));
  value0 = V{_mm512_permutex2var_ps(even.raw, lower.raw, value1.raw)};
  value1 = V{_mm512_permutex2var_ps(even.raw, upper.raw, value1.raw)};
#else
  // Duplicate each lane, then take every other lane from the other vector.
  const auto lower = hn::IndicesFromVec(d, hn::ShiftRight<1>(place));
  const auto half = hn::Set(d32, static_cast<std::uint32_t>(hn::Lanes(d) / 2));
  const auto upper = hn::IndicesFromVec(d, hn::Add(hn::ShiftRight<1>(place), half));
  value0 = hn::OddEven(hn::TableLookupLanes(value1, lower), hn::TableLookupLanes(even, lower));
  value1 = hn::OddEven(hn::TableLookupLanes(value1, upper), hn::TableLookupLanes(even, upper));
#endif
}

template <class Format>
inline constexpr bool kLoadsPairs = std::is_same_v<Bf16Pairs, Format>;
#else
using Bf16Pairs = Bf16;
template <class Format>
inline constexpr bool kLoadsPairs = false;
#endif

// binary16 has 5 exponent bits with bias 15 and 10 fraction bits; binary32 has 8, 127 and 23.
// Denormals are multiples of 2^-24 below 2^-14. A NaN keeps its payload, and stays signaling.
struct PortableF16 {
  using Element = std::uint16_t;
  using Accumulation = float;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::uint16_t* at) {
    return Widen(d, LoadHalves(d, at));
  }
  template <class D, class V>
  static HWY_INLINE hn::Vec<D> Widen(D d, V halves) {
    const hn::Rebind<std::int32_t, decltype(d)> d32;
    const auto half = BitsOfHalves(d, halves);
    const auto magnitude = hn::And(half, hn::Set(d32, 0x7fff));
    const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(d32, 0x8000)));
    const auto shifted = hn::ShiftLeft<13>(magnitude);
    const auto normal = hn::Add(shifted, hn::Set(d32, (127 - 15) << 23));
    const auto special = hn::Or(shifted, hn::Set(d32, kInfinityBits));  // infinities and NaNs
    const auto multiples = hn::ConvertTo(d, magnitude);
    const auto denormal = hn::BitCast(d32, hn::Mul(multiples, hn::Set(d, 0x1p-24f)));
    const auto is_special = hn::Gt(magnitude, hn::Set(d32, 0x7bff));
    const auto is_denormal = hn::Lt(magnitude, hn::Set(d32, 0x0400));
    const auto finite = hn::IfThenElse(is_denormal, denormal, normal);
    return hn::BitCast(d, hn::Or(hn::IfThenElse(is_special, special, finite), sign));
  }
  template <class D, class V>
  static HWY_INLINE hn::Vec<hn::Rebind<std::uint16_t, D>> Narrow(D d, V value) {
    const hn::Rebind<std::int32_t, decltype(d)> d32;
    const auto bits = hn::BitCast(d32, value);
    const auto magnitude = hn::And(bits, hn::Set(d32, kMagnitudeMask));
    const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 0x8000));
    // Magnitudes from 2^16 on, including infinity, become 2^16, which encodes binary16's infinity.
    const auto capped = hn::Min(magnitude, hn::Set(d32, (127 + 16) << 23));
    const auto rebiased = hn::Sub(capped, hn::Set(d32, (127 - 15) << 23));
    const auto normal = RoundShiftRight<13>(d32, rebiased);
    // Floats in [0.5, 1) are 2^-24 apart. The addition therefore rounds to a multiple of 2^-24, as
    // for denormals, and leaves that multiple in the fraction.
    const auto half = hn::Set(d, 0.5f);
    const auto sum = hn::Add(hn::BitCast(d, magnitude), half);
    const auto denormal = hn::Sub(hn::BitCast(d32, sum), hn::BitCast(d32, half));
    const auto is_denormal = hn::Lt(magnitude, hn::Set(d32, (127 - 14) << 23));
    const auto is_nan = hn::Gt(magnitude, hn::Set(d32, kInfinityBits));
    const auto number = hn::Or(hn::IfThenElse(is_denormal, denormal, normal), sign);
    return HalfBits(d, hn::IfThenElse(is_nan, hn::Set(d32, 0x7e00), number));
  }
  template <class D, class V>
  static HWY_INLINE void Store(D d, V value, std::uint16_t* at) {
    StoreNarrowed(Narrow(d, value), at);
  }
};

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
// Converts in hardware, which makes signaling NaNs quiet.
struct F16 {
  using Element = std::uint16_t;
  using Accumulation = float;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::uint16_t* at) {
    return Widen(d, LoadHalves(d, at));
  }
  template <class D, class V>
  static HWY_INLINE hn::Vec<D> Widen(D d, V halves) {
    return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, decltype(d)>(), halves));
  }
  template <class D, class V>
  static HWY_INLINE hn::Vec<hn::Rebind<std::uint16_t, D>> Narrow(D d, V value) {
    const hn::Rebind<std::uint16_t, decltype(d)> d16;
    const hn::Rebind<hwy::float16_t, decltype(d)> half;
    const auto rounded = hn::DemoteTo(half, NanMadeCanonical(d, value));
    return hn::BitCast(d16, rounded);
  }
  template <class D, class V>
  static HWY_INLINE void Store(D d, V value, std::uint16_t* at) {
    StoreNarrowed(Narrow(d, value), at);
  }
#if HWY_TARGET == HWY_AVX3
  template <class D, class V>
  static HWY_INLINE bool StoreOrdinary(D d, V value0, V value1, V value2, V value3,
                                       std::uint16_t* at) {
    if (HWY_UNLIKELY(AnyIs<kNonFinite>(value0, value1, value2, value3))) return false;
    const hn::Rebind<hwy::float16_t, decltype(d)> half;
    const hn::Rebind<std::uint16_t, decltype(d)> d16;
    const auto store = [&](V value, std::size_t i) HWY_ATTR {
      StoreNarrowed(hn::BitCast(d16, hn::DemoteTo(half, value)), at + i * hn::Lanes(d));
    };
    store(value0, 0);
    store(value1, 1);
    store(value2, 2);
    store(value3, 3);
    return true;
  }
#endif
};

// Keeps the bits of every NaN. Memory is loaded only once, even if there is a NaN.
struct ExactF16 : F16 {
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::uint16_t* at) {
    const auto halves = LoadHalves(d, at);
    const auto values = Widen(d, halves);
    if (HWY_LIKELY(hn::AllTrue(d, hn::Eq(values, values)))) return values;
    return PortableF16::Widen(d, halves);
  }
};
#else
using F16 = PortableF16;
using ExactF16 = PortableF16;
#endif

}  // namespace HWY_NAMESPACE
}  // namespace phub::simd
HWY_AFTER_NAMESPACE();

#endif  // toggled per target
