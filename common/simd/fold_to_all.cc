// Folds and stores to many arrays in one loop: an all-reduce into every worker's own buffer.
// Working block by block would reach only half the memory bandwidth, because memory idles while a
// block is folded and the fold idles while the block is copied.
#include <algorithm>
#include <array>
#include <cstdint>

#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/simd/blocks.h"

// This file is compiled once per instruction set: foreach_target.h includes it again for each, and
// must come before everything that depends on the target.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/simd/fold_to_all.cc"
#include "hwy/foreach_target.h"
// clang-format on

#include "common/simd/fold-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace phub::simd {
namespace HWY_NAMESPACE {

template <class Format, bool kStreams>
struct StoreToAll {
  std::span<std::byte* const> outputs;
  template <class D, class V>
  HWY_INLINE void operator()(D d, std::size_t i, V value) const {
    const auto narrowed = Format::Narrow(d, value);
    for (std::byte* const output : outputs) Put(d, narrowed, output, i);
  }
  // Writes all four vectors to one array before the next array.
  template <class D, class V>
  HWY_INLINE void TakeFour(D d, std::size_t i, V value0, V value1, V value2, V value3) const {
    const std::size_t lanes = hn::Lanes(d);
    const auto narrowed0 = Format::Narrow(d, value0);
    const auto narrowed1 = Format::Narrow(d, value1);
    const auto narrowed2 = Format::Narrow(d, value2);
    const auto narrowed3 = Format::Narrow(d, value3);
    for (std::byte* const output : outputs) {
      Put(d, narrowed0, output, i);
      Put(d, narrowed1, output, i + lanes);
      Put(d, narrowed2, output, i + 2 * lanes);
      Put(d, narrowed3, output, i + 3 * lanes);
    }
  }
  template <class D, class V>
  requires kLoadsPairs<Format> HWY_INLINE void TakePairs(D d, std::size_t i, V even0, V odd0,
                                                         V even1, V odd1) const {
    const auto narrowed0 = Format::NarrowPair(d, even0, odd0);
    const auto narrowed1 = Format::NarrowPair(d, even1, odd1);
    for (std::byte* const output : outputs) {
      Put(d, narrowed0, output, i);
      Put(d, narrowed1, output, i + 2 * hn::Lanes(d));
    }
  }

 private:
  template <class D, class V>
  static HWY_INLINE void Put(D /*d*/, V narrowed, std::byte* output, std::size_t i) {
    using Element = typename Format::Element;
    Element* const at = reinterpret_cast<Element*>(output) + i;
    // Non-temporal stores need at least a full SSE vector.
    if constexpr (kStreams && hn::MaxLanes(D()) * sizeof(Element) >= 16) {
      hn::Stream(narrowed, hn::DFromV<V>(), at);
    } else {
      StoreNarrowed(narrowed, at);
    }
  }
};

template <class Format>
bool FoldToAllAs(const Combination& combination, const Terms& terms, Range range,
                 std::span<std::byte* const> outputs, bool streams) {
  if (streams) {
    return AddTerms<Format>(combination, terms, range, StoreToAll<Format, true>{outputs});
  }
  return AddTerms<Format>(combination, terms, range, StoreToAll<Format, false>{outputs});
}

bool FoldToAllKernel(const Combination& combination, const Terms& terms, Range range,
                     std::span<std::byte* const> outputs, bool streams) {
  switch (combination.wire) {
    case ElementType::kF32:
      return FoldToAllAs<Plain<float>>(combination, terms, range, outputs, streams);
    case ElementType::kF64:
      return FoldToAllAs<Plain<double>>(combination, terms, range, outputs, streams);
    case ElementType::kF16: return FoldToAllAs<F16>(combination, terms, range, outputs, streams);
    case ElementType::kBf16:
      return FoldToAllAs<Bf16Pairs>(combination, terms, range, outputs, streams);
    case ElementType::kI32:
      return FoldToAllAs<Plain<std::int32_t>>(combination, terms, range, outputs, streams);
    case ElementType::kI64:
      return FoldToAllAs<Plain<std::int64_t>>(combination, terms, range, outputs, streams);
    case ElementType::kU8:
      return FoldToAllAs<Plain<std::uint8_t>>(combination, terms, range, outputs, streams);
  }
  return false;
}

}  // namespace HWY_NAMESPACE
}  // namespace phub::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace phub::simd {

HWY_EXPORT(FoldToAllKernel);

namespace {

constexpr std::size_t kStreamedAlignment = 64;  // alignment of the longest vectors
// The limit without streaming. A job's buffers have the same offsets in their pages and therefore
// map to the same L1 set, which has 8 or 12 lines. Every rank has a gradient and a reply; more
// ranks exceed the set. (Speed relative to block by block, in the L2 cache, Zen 5: 8 ranks 0.8 and
// 0.9; 4 ranks 1.1 to 1.3.)
constexpr std::size_t kCachedRepliesMax = 4;

bool IsAligned(const std::byte* array) {
  return reinterpret_cast<std::uintptr_t>(array) % kStreamedAlignment == 0;
}

}  // namespace

bool CanFoldToAll(const Round& round, const RoundMemory& memory) {
  const bool keeps_type =
      round.wire == round.type && round.reply == round.type && round.encoded.encoding.none();
  const bool adds = round.reduction == Reduction::kSum || round.reduction == Reduction::kMean;
  const bool clips = round.arguments.clip_value > 0.0 && numeric::IsFloating(round.type);
  if (!keeps_type || !adds || clips || round.optimizer != Optimizer::kNone) return false;
  if (memory.streams_results) {
    return IsAligned(memory.next_parameters) && std::ranges::all_of(memory.replies, IsAligned);
  }
  return !memory.replies.empty() && memory.replies.size() <= kCachedRepliesMax;
}

bool FoldToAll(const Combination& combination, const Terms& terms, Range range,
               const RoundMemory& memory) {
  std::array<std::byte*, kRanksMax + 2> outputs;
  std::size_t count = 0;
  if (memory.next_parameters != nullptr) outputs[count++] = memory.next_parameters;
  PHUB_CHECK(memory.replies.size() <= outputs.size() - count, "replies={}", memory.replies.size());
  for (std::byte* const reply : memory.replies) outputs[count++] = reply;
  return HWY_DYNAMIC_DISPATCH(FoldToAllKernel)(combination, terms, range, {outputs.data(), count},
                                               memory.streams_results);
}

}  // namespace phub::simd
#endif  // HWY_ONCE
