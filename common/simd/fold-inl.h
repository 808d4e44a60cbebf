// The one loop behind every kernel: fold k inputs element by element, hand each finished value to
// an epilogue. Compiled once per instruction set (Highway's foreach_target), hence the toggled
// include guard and HWY_NAMESPACE; only kernels.cc and its like include it.
//
// What can be exchanged:
// - Folder: how an input's elements become lanes of the accumulation type, and how the next input
//   joins the running value.
//     using Element, using Accumulation
//     Load(d, const Element* at) -> Vec<D>, with D a tag of Accumulation
//     Combine(running, next) -> Vec<D>
// - Epilogue: what becomes of the finished lanes [i, i + Lanes(d)): stored, averaged, an update.
//     operator()(d, i, value); called once for each i, ascending
// Both work on any tag, since the last elements come through with one lane. Every lane sees the
// same operations in the same order whatever the width, which is why the bits never depend on it.
// Every input element is loaded exactly once (a peer may be writing to it).
#if defined(PHUB_SIMD_FOLD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PHUB_SIMD_FOLD_INL_H_
#undef PHUB_SIMD_FOLD_INL_H_
#else
#define PHUB_SIMD_FOLD_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <span>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace phub::simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Rows folded in one go: each is a stream for the hardware prefetchers and a page for the TLB, and
// both run out somewhere above this. (On a Zen 3 core, 16 rows out of cache: 22 GB/s in passes of
// 8, 16 GB/s in one of 16; within the caches there is no difference.)
inline constexpr std::size_t kRowsPerPass = 8;
// With more rows than that, elements go in blocks; a block's running values stay in the L1 cache
// (8 KiB as f32, of 32) between passes.
inline constexpr std::size_t kBlockElements = 2048;

// Where a fold starts: rank 0's array, or what earlier passes left.
template <class Folder>
struct FromInput {
  const typename Folder::Element* base;
  template <class D>
  HWY_INLINE hn::Vec<D> Load(D d, std::size_t i) const {
    return Folder::Load(d, base + i);
  }
};
template <class Folder>
struct FromRunning {
  const typename Folder::Accumulation* running;  // of element `begin`
  std::size_t begin;
  template <class D>
  HWY_INLINE hn::Vec<D> Load(D d, std::size_t i) const {
    return hn::LoadU(d, running + (i - begin));
  }
};

// Epilogue of a pass that is not the last.
template <class Accumulation>
struct KeepRunning {
  Accumulation* running;
  std::size_t begin;
  template <class D, class V>
  HWY_INLINE void operator()(D d, std::size_t i, V value) const {
    hn::StoreU(value, d, running + (i - begin));
  }
};

// One vector's worth (one lane's, with a tag of one lane) of FoldRange.
template <class Folder, class D, class First, class Epilogue>
HWY_INLINE void FoldVector(D d, const First& first,
                           std::span<const typename Folder::Element* const> rows, std::size_t i,
                           const Epilogue& epilogue) {
  auto value = first.Load(d, i);
  for (const auto* row : rows) value = Folder::Combine(value, Folder::Load(d, row + i));
  epilogue(d, i, value);
}

// Elements [begin, end): `first`, then each of `rows`, then the epilogue. By value, so that the
// compiler sees that no store through the epilogue's pointers changes the epilogue; not inlined, so
// that kernels share the passes that they have in common.
template <class Folder, class First, class Epilogue>
HWY_NOINLINE void FoldRange(First first, std::span<const typename Folder::Element* const> rows,
                            std::size_t begin, std::size_t end, Epilogue epilogue) {
  const hn::ScalableTag<typename Folder::Accumulation> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = begin;
  // Four vectors at a time: independent chains hide the latency of an addition, and the load of a
  // row's address is paid once for all four.
  for (; i + 4 * lanes <= end; i += 4 * lanes) {
    auto value0 = first.Load(d, i);
    auto value1 = first.Load(d, i + lanes);
    auto value2 = first.Load(d, i + 2 * lanes);
    auto value3 = first.Load(d, i + 3 * lanes);
    for (const auto* row : rows) {
      const auto* const at = row + i;
      value0 = Folder::Combine(value0, Folder::Load(d, at));
      value1 = Folder::Combine(value1, Folder::Load(d, at + lanes));
      value2 = Folder::Combine(value2, Folder::Load(d, at + 2 * lanes));
      value3 = Folder::Combine(value3, Folder::Load(d, at + 3 * lanes));
    }
    epilogue(d, i, value0);
    epilogue(d, i + lanes, value1);
    epilogue(d, i + 2 * lanes, value2);
    epilogue(d, i + 3 * lanes, value3);
  }
  for (; i + lanes <= end; i += lanes) FoldVector<Folder>(d, first, rows, i, epilogue);
  const hn::CappedTag<typename Folder::Accumulation, 1> one;
  for (; i < end; ++i) FoldVector<Folder>(one, first, rows, i, epilogue);
}

// More rows than one pass takes.
template <class Folder, class Epilogue>
HWY_INLINE void FoldInPasses(std::span<const typename Folder::Element* const> inputs,
                             std::size_t count, const Epilogue& epilogue) {
  using Accumulation = typename Folder::Accumulation;
  HWY_ALIGN Accumulation running[kBlockElements];
  for (std::size_t begin = 0; begin < count; begin += kBlockElements) {
    const std::size_t end = std::min(count, begin + kBlockElements);
    const KeepRunning<Accumulation> keep{running, begin};
    FoldRange<Folder>(FromInput<Folder>{inputs[0]}, inputs.subspan(1, kRowsPerPass - 1), begin, end,
                      keep);
    const FromRunning<Folder> first{running, begin};
    auto rows = inputs.subspan(kRowsPerPass);
    for (; rows.size() > kRowsPerPass; rows = rows.subspan(kRowsPerPass)) {
      FoldRange<Folder>(first, rows.first(kRowsPerPass), begin, end, keep);
    }
    FoldRange<Folder>(first, rows, begin, end, epilogue);
  }
}

// All of it: a left fold of `inputs` over elements [0, count).
template <class Folder, class Epilogue>
HWY_INLINE void FoldInputs(std::span<const typename Folder::Element* const> inputs,
                           std::size_t count, const Epilogue& epilogue) {
  if (inputs.size() > kRowsPerPass) return FoldInPasses<Folder>(inputs, count, epilogue);
  FoldRange<Folder>(FromInput<Folder>{inputs[0]}, inputs.subspan(1), 0, count, epilogue);
}

// Sums of f32 in f32.
struct SumOfFloats {
  using Element = float;
  using Accumulation = float;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const float* at) {
    return hn::LoadU(d, at);
  }
  template <class V>
  static HWY_INLINE V Combine(V running, V next) {
    return hn::Add(running, next);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace phub::simd
HWY_AFTER_NAMESPACE();

#endif  // toggled per target
