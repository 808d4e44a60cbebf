// The common loop of all kernels: folds k terms element by element and passes each finished value
// to an epilogue. Compiled once per instruction set (Highway's foreach_target), hence the toggled
// include guard and HWY_NAMESPACE. Only the .cc files of this folder include it.
//
// Template parameters:
// - Format: converts a term's elements to lanes of the accumulation type (formats-inl.h).
// - Reduction: combines the running value with the next term (reductions-inl.h).
// - Epilogue: consumes the finished lanes [i, i + Lanes(d)): stores, averages or updates.
//     operator()(d, i, value): called once for each i, ascending
//     TakeFour(d, i, value0, value1, value2, value3), optional: four calls in one
//     TakePairs(d, i, even0, odd0, even1, odd1), optional: the same for Bf16Pairs
//     TakeOrdinary(d, i, value0, ..., value3) -> bool, optional: replaces TakeFour or TakePairs.
//       If a value is NaN or infinite it must return false without effect; it always may.
// All must work with any tag, because the last elements are processed with one lane. Every lane
// performs the same operations in the same order at every width: the bits do not depend on the
// width. Every element of a term is loaded exactly once, because a peer may be writing to it.
//
// Every fold of floats also reports whether a finished value is NaN or infinite (`Screened`). This
// takes two instructions per vector for any number of terms, because sums and products propagate
// NaNs and infinities.
#if defined(PHUB_SIMD_FOLD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PHUB_SIMD_FOLD_INL_H_
#undef PHUB_SIMD_FOLD_INL_H_
#else
#define PHUB_SIMD_FOLD_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <span>

#include "common/base/check.h"
#include "common/simd/blocks.h"
#include "common/simd/formats-inl.h"
#include "common/simd/reductions-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace phub::simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Rows per pass. Each row needs a hardware prefetch stream and a TLB entry, and more rows exceed
// both. (On a Zen 3 core, 16 rows out of cache: 22 GB/s in passes of 8, 16 GB/s in one pass of 16;
// no difference within the caches.) More rows are folded in blocks; the running values of a block
// stay in the L1 cache between passes. Fewer than kRowsTogether rows are faster in a single pass.
inline constexpr std::size_t kRowsPerPass = 8;
inline constexpr std::size_t kRowsTogether = 14;
inline constexpr std::size_t kBlockBytes = 8192;  // of running values, in an L1 cache of 32 KiB

using Rows = std::span<const std::byte* const>;

// The first term of a fold: an array, and the index of its first element.
template <class FormatOf>
struct From {
  using Format = FormatOf;
  const typename Format::Element* array;
  std::size_t begin;
  template <class D>
  HWY_INLINE hn::Vec<D> Load(D d, std::size_t i) const {
    return Format::Load(d, array + (i - begin));
  }
};

// Loads four vectors from element i on, in the order of RowFormat: pairs of even and odd places if
// RowFormat loads pairs.
template <class RowFormat, class D, class First, class V>
HWY_INLINE void LoadFour(D d, const First& first, std::size_t i, V& value0, V& value1, V& value2,
                         V& value3) {
  const std::size_t lanes = hn::Lanes(d);
  if constexpr (kLoadsPairs<typename First::Format>) {
    const auto* const at = first.array + (i - first.begin);
    First::Format::LoadPair(d, at, value0, value1);
    First::Format::LoadPair(d, at + 2 * lanes, value2, value3);
  } else {
    value0 = first.Load(d, i);
    value1 = first.Load(d, i + lanes);
    value2 = first.Load(d, i + 2 * lanes);
    value3 = first.Load(d, i + 3 * lanes);
    if constexpr (kLoadsPairs<RowFormat>) {
      PutApart(d, value0, value1);
      PutApart(d, value2, value3);
    }
  }
}

template <class Format, class D, class V>
concept StoresOrdinary = requires(D d, V value, typename Format::Element* at) {
  Format::StoreOrdinary(d, value, value, value, value, at);
};

// The simplest epilogue: stores the values. output[0] is element `begin`.
template <class Format>
struct StoreAs {
  typename Format::Element* output;
  std::size_t begin;
  template <class D, class V>
  HWY_INLINE void operator()(D d, std::size_t i, V value) const {
    Format::Store(d, value, output + (i - begin));
  }
  template <class D, class V>
  requires kLoadsPairs<Format> HWY_INLINE void TakePairs(D d, std::size_t i, V even0, V odd0,
                                                         V even1, V odd1) const {
    typename Format::Element* const at = output + (i - begin);
    StoreNarrowed(Format::NarrowPair(d, even0, odd0), at);
    StoreNarrowed(Format::NarrowPair(d, even1, odd1), at + 2 * hn::Lanes(d));
  }
  template <class D, class V>
  requires StoresOrdinary<Format, D, V> HWY_INLINE bool TakeOrdinary(D d, std::size_t i, V value0,
                                                                     V value1, V value2,
                                                                     V value3) const {
    return Format::StoreOrdinary(d, value0, value1, value2, value3, output + (i - begin));
  }
};

// Passes four vectors of finished values, from element i on, to the epilogue.
template <class Epilogue, class D, class V>
HWY_INLINE void GiveFour(const Epilogue& epilogue, D d, std::size_t i, V value0, V value1, V value2,
                         V value3) {
  if constexpr (requires { epilogue.TakeFour(d, i, value0, value1, value2, value3); }) {
    epilogue.TakeFour(d, i, value0, value1, value2, value3);
  } else {
    const std::size_t lanes = hn::Lanes(d);
    epilogue(d, i, value0);
    epilogue(d, i + lanes, value1);
    epilogue(d, i + 2 * lanes, value2);
    epilogue(d, i + 3 * lanes, value3);
  }
}

template <class Epilogue, class D, class V>
concept TakesPairs = requires(const Epilogue& epilogue, D d, std::size_t i, V value) {
  epilogue.TakePairs(d, i, value, value, value, value);
};

template <class Epilogue, class D, class V>
concept TakesOrdinary = requires(const Epilogue& epilogue, D d, std::size_t i, V value) {
  epilogue.TakeOrdinary(d, i, value, value, value, value);
};

// The same for two pairs (formats-inl.h).
template <class Epilogue, class D, class V>
HWY_INLINE void GivePairs(const Epilogue& epilogue, D d, std::size_t i, V even0, V odd0, V even1,
                          V odd1) {
  if constexpr (TakesPairs<Epilogue, D, V>) {
    epilogue.TakePairs(d, i, even0, odd0, even1, odd1);
  } else {
    PutInOrder(d, even0, odd0);
    PutInOrder(d, even1, odd1);
    GiveFour(epilogue, d, i, even0, odd0, even1, odd1);
  }
}

// Divides if `divides` is set, then calls the next epilogue. It is a flag and not a type, because
// sums and means would each have a pass of their own: twice the code and compile time. For four
// vectors, a branch that is always predicted costs nothing that could be measured (Zen 5).
template <class Accumulation, class Next>
struct DivideThen {
  bool divides;
  Accumulation divisor;
  Next next;
  template <class D, class V>
  HWY_INLINE void operator()(D d, std::size_t i, V value) const {
    if (divides) value = hn::Div(value, hn::Set(d, divisor));
    next(d, i, value);
  }
  template <class D, class V>
  HWY_INLINE void TakeFour(D d, std::size_t i, V value0, V value1, V value2, V value3) const {
    DivideFour(d, value0, value1, value2, value3);
    GiveFour(next, d, i, value0, value1, value2, value3);
  }
  template <class D, class V>
  requires TakesPairs<Next, D, V> HWY_INLINE void TakePairs(D d, std::size_t i, V even0, V odd0,
                                                            V even1, V odd1) const {
    DivideFour(d, even0, odd0, even1, odd1);
    next.TakePairs(d, i, even0, odd0, even1, odd1);
  }
  template <class D, class V>
  requires TakesOrdinary<Next, D, V> HWY_INLINE bool TakeOrdinary(D d, std::size_t i, V value0,
                                                                  V value1, V value2,
                                                                  V value3) const {
    DivideFour(d, value0, value1, value2, value3);
    return next.TakeOrdinary(d, i, value0, value1, value2, value3);
  }

 private:
  template <class D, class V>
  HWY_INLINE void DivideFour(D d, V& value0, V& value1, V& value2, V& value3) const {
    if (divides) [[unlikely]] {
      const V by = hn::Set(d, divisor);
      value0 = hn::Div(value0, by);
      value1 = hn::Div(value1, by);
      value2 = hn::Div(value2, by);
      value3 = hn::Div(value3, by);
    }
  }
};

// Records NaNs and infinities in `seen`, which starts as zero: v - v is 0 for a finite v and NaN
// otherwise. Does nothing for integers.
template <class D, class V>
HWY_INLINE V Screened([[maybe_unused]] D d, V seen, [[maybe_unused]] V value) {
  if constexpr (!kIsFloating<D>) return seen;
  return hn::Or(seen, hn::Sub(value, value));
}
template <class D, class V>
HWY_INLINE bool IsNonFinite([[maybe_unused]] D d, [[maybe_unused]] V seen) {
  if constexpr (!kIsFloating<D>) return false;
  return !hn::AllTrue(d, hn::Eq(seen, hn::Zero(d)));
}

// FoldPass for one vector.
template <class Format, class Reduction, class D, class First, class Epilogue>
HWY_INLINE hn::Vec<D> FoldVector(D d, const First& first, Rows rows, std::size_t i,
                                 const Epilogue& epilogue, hn::Vec<D> seen) {
  auto value = Reduction::First(d, first.Load(d, i));
  for (const std::byte* row : rows) {
    const auto* const at = reinterpret_cast<const typename Format::Element*>(row) + i;
    value = Reduction::Combine(d, value, Format::Load(d, at));
  }
  epilogue(d, i, value);
  return Screened(d, seen, value);
}

// Folds the elements of `range`: `first`, then each of `rows` (fewer than kRowsTogether), and
// passes the results to the epilogue. Returns true if a result is NaN or infinite. The epilogue is
// passed by value: the compiler then knows that stores through its pointers cannot change it. The
// function is not inlined: kernels share common passes.
template <class Format, class Reduction, class First, class Epilogue>
HWY_NOINLINE bool FoldPass(First first, Rows rows, Range range, Epilogue epilogue) {
  PHUB_CHECK(rows.size() < kRowsTogether, "rows={}", rows.size());
  const hn::ScalableTag<typename Format::Accumulation> d;
  const std::size_t lanes = hn::Lanes(d);
  auto seen = hn::Zero(d);
  std::size_t i = range.begin;
  // Four vectors at a time: independent chains hide the latency of additions, and a row's address
  // is loaded once for all four.
  for (; i + 4 * lanes <= range.end; i += 4 * lanes) {
    hn::Vec<decltype(d)> value0, value1, value2, value3;
    LoadFour<Format>(d, first, i, value0, value1, value2, value3);
    value0 = Reduction::First(d, value0);
    value1 = Reduction::First(d, value1);
    value2 = Reduction::First(d, value2);
    value3 = Reduction::First(d, value3);
    // Always inlined: for many rows GCC 12 would emit calls and keep the values in memory.
    // (Sums of 8 rows of integers: 2 times as long in the L1 cache, Zen 5.)
    const auto combine = [&](std::size_t from_last) HWY_ATTR __attribute__((always_inline)) {
      const std::byte* const row = rows.end()[-static_cast<std::ptrdiff_t>(from_last)];
      const From<Format> term{reinterpret_cast<const typename Format::Element*>(row), 0};
      hn::Vec<decltype(d)> term0, term1, term2, term3;
      LoadFour<Format>(d, term, i, term0, term1, term2, term3);
      value0 = Reduction::Combine(d, value0, term0);
      value1 = Reduction::Combine(d, value1, term1);
      value2 = Reduction::Combine(d, value2, term2);
      value3 = Reduction::Combine(d, value3, term3);
    };
    // Not a loop: each row needs its own load instructions, because hardware prefetchers identify a
    // stream by the address of the load instruction. (In a loop: 1.5 times as long in the L2 cache,
    // 4 rows and more, Zen 5.)
    static_assert(kRowsPerPass < kRowsTogether && kRowsTogether == 14);
    switch (rows.size()) {
      case 13: combine(13); [[fallthrough]];
      case 12: combine(12); [[fallthrough]];
      case 11: combine(11); [[fallthrough]];
      case 10: combine(10); [[fallthrough]];
      case 9: combine(9); [[fallthrough]];
      case 8: combine(8); [[fallthrough]];
      case 7: combine(7); [[fallthrough]];
      case 6: combine(6); [[fallthrough]];
      case 5: combine(5); [[fallthrough]];
      case 4: combine(4); [[fallthrough]];
      case 3: combine(3); [[fallthrough]];
      case 2: combine(2); [[fallthrough]];
      case 1: combine(1); [[fallthrough]];
      default: break;  // none
    }
    if constexpr (TakesOrdinary<Epilogue, decltype(d), decltype(value0)>) {
      if (epilogue.TakeOrdinary(d, i, value0, value1, value2, value3)) continue;
    }
    const auto seen01 = Screened(d, Screened(d, hn::Zero(d), value0), value1);
    const auto seen23 = Screened(d, Screened(d, hn::Zero(d), value2), value3);
    seen = hn::Or3(seen, seen01, seen23);
    if constexpr (kLoadsPairs<Format>) {
      GivePairs(epilogue, d, i, value0, value1, value2, value3);
    } else {
      GiveFour(epilogue, d, i, value0, value1, value2, value3);
    }
  }
  for (; i + lanes <= range.end; i += lanes) {
    seen = FoldVector<Format, Reduction>(d, first, rows, i, epilogue, seen);
  }
  const hn::CappedTag<typename Format::Accumulation, 1> one;
  auto seen_last = hn::Zero(one);
  for (; i < range.end; ++i) {
    seen_last = FoldVector<Format, Reduction>(one, first, rows, i, epilogue, seen_last);
  }
  return IsNonFinite(d, seen) || IsNonFinite(one, seen_last);
}

// Folds more rows than fit into one pass. Only the last pass is screened: an infinity that a
// minimum or maximum drops earlier is not reported.
template <class Format, class Reduction, class First, class Epilogue>
HWY_INLINE bool FoldInPasses(const First& first, Rows all, Range range, const Epilogue& epilogue) {
  using Accumulation = typename Format::Accumulation;
  using Running = Plain<Accumulation>;
  constexpr std::size_t kBlock = kBlockBytes / sizeof(Accumulation);
  HWY_ALIGN Accumulation running[kBlock];
  bool found = false;
  for (std::size_t begin = range.begin; begin < range.end; begin += kBlock) {
    const Range block{begin, std::min(range.end, begin + kBlock)};
    const StoreAs<Running> keep{running, begin};
    const From<Running> kept{running, begin};
    FoldPass<Format, Reduction>(first, all.first(kRowsPerPass - 1), block, keep);
    Rows rows = all.subspan(kRowsPerPass - 1);
    for (; rows.size() > kRowsPerPass; rows = rows.subspan(kRowsPerPass)) {
      FoldPass<Format, Reduction>(kept, rows.first(kRowsPerPass), block, keep);
    }
    found |= FoldPass<Format, Reduction>(kept, rows, block, epilogue);
  }
  return found;
}

template <class Format, class Reduction, class First, class Epilogue>
HWY_INLINE bool FoldRows(const First& first, Rows rows, Range range, const Epilogue& epilogue) {
  if (rows.size() >= kRowsTogether) {
    return FoldInPasses<Format, Reduction>(first, rows, range, epilogue);
  }
  return FoldPass<Format, Reduction>(first, rows, range, epilogue);
}

// Folds all terms over the elements of `range`.
template <class Format, class Reduction, class Epilogue>
HWY_INLINE bool FoldTerms(const Terms& terms, Range range, const Epilogue& epilogue) {
  using Accumulation = typename Format::Accumulation;
  if (terms.folded != nullptr) {
    const From<Plain<Accumulation>> first{reinterpret_cast<const Accumulation*>(terms.folded), 0};
    return FoldRows<Format, Reduction>(first, terms.inputs, range, epilogue);
  } else {
    using Element = typename Format::Element;
    const From<Format> first{reinterpret_cast<const Element*>(terms.inputs[0]), 0};
    return FoldRows<Format, Reduction>(first, terms.inputs.subspan(1), range, epilogue);
  }
}

// FoldTerms for sums and means only.
template <class Format, class Epilogue>
HWY_INLINE bool AddTerms(const Combination& combination, const Terms& terms, Range range,
                         const Epilogue& epilogue) {
  using Accumulation = typename Format::Accumulation;
  if constexpr (std::is_floating_point_v<Accumulation>) {
    const bool divides = combination.reduction == Reduction::kMean;
    const auto divisor = static_cast<Accumulation>(combination.divisor);
    return FoldTerms<Format, Sum>(terms, range,
                                  DivideThen<Accumulation, Epilogue>{divides, divisor, epilogue});
  } else {
    return FoldTerms<Format, Sum>(terms, range, epilogue);
  }
}

// FoldTerms for bitwise operations, which only integers have.
template <class Format, class Epilogue>
HWY_INLINE bool FoldBits(Reduction reduction, const Terms& terms, Range range,
                         const Epilogue& epilogue) {
  if constexpr (std::is_integral_v<typename Format::Accumulation>) {
    switch (reduction) {
      case Reduction::kBitwiseAnd: return FoldTerms<Format, BitwiseAnd>(terms, range, epilogue);
      case Reduction::kBitwiseOr: return FoldTerms<Format, BitwiseOr>(terms, range, epilogue);
      default: return FoldTerms<Format, BitwiseXor>(terms, range, epilogue);
    }
  }
  return false;
}

// Dispatches on the reduction once per call, not per element.
template <class Format, class Output>
HWY_INLINE bool FoldAs(const Combination& combination, const Terms& terms, Range range,
                       std::byte* output) {
  const StoreAs<Output> store{reinterpret_cast<typename Output::Element*>(output), range.begin};
  switch (combination.reduction) {
    case Reduction::kSum:
    case Reduction::kMean: return AddTerms<Format>(combination, terms, range, store);
    case Reduction::kMin: return FoldTerms<Format, Minimum>(terms, range, store);
    case Reduction::kMax: return FoldTerms<Format, Maximum>(terms, range, store);
    case Reduction::kProduct: return FoldTerms<Format, Product>(terms, range, store);
    case Reduction::kBitwiseAnd:
    case Reduction::kBitwiseOr:
    case Reduction::kBitwiseXor:
      return FoldBits<Format>(combination.reduction, terms, range, store);
  }
  return false;
}

}  // namespace HWY_NAMESPACE
}  // namespace phub::simd
HWY_AFTER_NAMESPACE();

#endif  // toggled per target
