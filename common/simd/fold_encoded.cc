// Folds of encoded gradients (common/base/encoding.h), decoded to f32 on the fly.
//
// Encoded payloads are not loaded only once: a scale is loaded for every four vectors of its block,
// and indices while they are searched. Every index is checked after its last load. So if another
// process writes to a payload meanwhile, its elements may have any values, and nothing else.
#include <algorithm>
#include <array>
#include <cstring>

#include "common/base/check.h"
#include "common/simd/blocks.h"

// This file is compiled once per instruction set: foreach_target.h includes it again for each, and
// must come before everything that depends on the target.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/simd/fold_encoded.cc"
#include "hwy/foreach_target.h"
// clang-format on

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace phub::simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Payloads = std::span<const std::byte* const>;

// Decodes elements of one block of a payload with int8.
struct Int8Term {
  float scale;
  const std::int8_t* values;  // from the first element of the range on

  Int8Term(const std::byte* payload, std::size_t count, std::size_t first)
      : scale(),
        values(reinterpret_cast<const std::int8_t*>(payload) +
               numeric::Int8Blocks(count) * sizeof(float) + first) {
    std::memcpy(&scale, payload + first / numeric::kInt8Block * sizeof(float), sizeof(float));
  }
  template <class D>
  HWY_INLINE hn::Vec<D> Load(D d, std::size_t i) const {
    const hn::Rebind<std::int8_t, D> d8;
    const hn::Rebind<std::int32_t, D> d32;
    const auto whole = hn::PromoteTo(d32, hn::LoadU(d8, values + i));
    return hn::Mul(hn::ConvertTo(d, whole), hn::Set(d, scale));
  }
};

// The sum of `size` elements from `first` on, all of one block. `folded` and `sum` are at the same
// element.
template <class D>
HWY_INLINE std::size_t SumInt8Vectors(D d, Payloads payloads, std::size_t count, std::size_t first,
                                      std::size_t i, std::size_t size, const float* folded,
                                      float* sum) {
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t from = folded == nullptr ? 1 : 0;
  for (; i + 4 * lanes <= size; i += 4 * lanes) {
    hn::Vec<D> sum0, sum1, sum2, sum3;
    const auto load = [&](const auto& at) HWY_ATTR {
      sum0 = at(i);
      sum1 = at(i + lanes);
      sum2 = at(i + 2 * lanes);
      sum3 = at(i + 3 * lanes);
    };
    if (folded != nullptr) {
      load([&](std::size_t at) HWY_ATTR { return hn::LoadU(d, folded + at); });
    } else {
      const Int8Term term(payloads[0], count, first);
      load([&](std::size_t at) HWY_ATTR { return term.Load(d, at); });
    }
    for (const std::byte* const payload : payloads.subspan(from)) {
      const Int8Term term(payload, count, first);
      sum0 = hn::Add(sum0, term.Load(d, i));
      sum1 = hn::Add(sum1, term.Load(d, i + lanes));
      sum2 = hn::Add(sum2, term.Load(d, i + 2 * lanes));
      sum3 = hn::Add(sum3, term.Load(d, i + 3 * lanes));
    }
    hn::StoreU(sum0, d, sum + i);
    hn::StoreU(sum1, d, sum + i + lanes);
    hn::StoreU(sum2, d, sum + i + 2 * lanes);
    hn::StoreU(sum3, d, sum + i + 3 * lanes);
  }
  return i;
}

void SumInt8Kernel(Payloads payloads, std::size_t count, std::size_t first, std::size_t size,
                   const float* folded, float* sum) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  std::size_t i = SumInt8Vectors(d, payloads, count, first, 0, size, folded, sum);
  i = SumInt8Vectors(one, payloads, count, first, i, size, folded, sum);
  for (; i < size; ++i) {
    auto value = folded == nullptr ? Int8Term(payloads[0], count, first).Load(one, i)
                                   : hn::LoadU(one, folded + i);
    for (const std::byte* const payload : payloads.subspan(folded == nullptr ? 1 : 0)) {
      value = hn::Add(value, Int8Term(payload, count, first).Load(one, i));
    }
    hn::StoreU(value, one, sum + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace phub::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace phub::simd {

HWY_EXPORT(SumInt8Kernel);

namespace {

using numeric::Encoding;

constexpr std::size_t kSumBytes = 4096;  // stays in the L1 cache

void SumInt8(const Encoded& encoded, std::span<const std::byte* const> payloads, std::size_t first,
             std::size_t size, const float* folded, float* sum) {
  for (std::size_t done = 0; done < size;) {
    const std::size_t at = first + done;
    const std::size_t part = std::min(size - done, numeric::kInt8Block - at % numeric::kInt8Block);
    HWY_DYNAMIC_DISPATCH(SumInt8Kernel)
    (payloads, encoded.count, at, part, folded == nullptr ? nullptr : folded + done, sum + done);
    done += part;
  }
}

template <class Index>
Index IndexAt(const std::byte* indices, std::size_t i) {
  Index index;
  std::memcpy(&index, indices + i * sizeof(Index), sizeof(Index));
  return index;
}

float ValueAt(const std::byte* values, std::size_t i) {
  float value;
  std::memcpy(&value, values + i * sizeof(float), sizeof(float));
  return value;
}

// Adds the values whose indices are in [first, first + size).
template <class Index>
void AddTopK(const std::byte* payload, std::size_t kept, std::size_t first, std::size_t size,
             float* sum) {
  const std::byte* const indices = payload + kept * sizeof(float);
  std::size_t begin = 0, end = kept;  // the first index that is not below `first`
  while (begin < end) {
    const std::size_t middle = begin + (end - begin) / 2;
    IndexAt<Index>(indices, middle) < first ? begin = middle + 1 : end = middle;
  }
  for (; begin < kept; ++begin) {
    const std::size_t place = IndexAt<Index>(indices, begin);
    if (place < first || place - first >= size) return;
    sum[place - first] += ValueAt(payload, begin);
  }
}

void AddRandomK(const std::byte* payload, std::size_t count, std::size_t kept, std::size_t first,
                std::size_t size, float* sum) {
  std::uint64_t seed;
  std::memcpy(&seed, payload, sizeof(seed));
  // The part that has element `first`, or the one before it.
  std::size_t number = static_cast<std::size_t>(std::uint64_t{first} * kept / count);
  for (; number < kept; ++number) {
    if (numeric::RandomPart(count, kept, number) >= first + size) return;
    const std::size_t place = numeric::RandomPlace(seed, count, kept, number);
    if (place < first || place - first >= size) continue;
    sum[place - first] += ValueAt(payload + sizeof(seed), number);
  }
}

void SumSparse(const Encoded& encoded, std::span<const std::byte* const> payloads,
               std::size_t first, std::size_t size, const float* folded, float* sum) {
  if (folded == nullptr) {
    std::fill_n(sum, size, 0.0f);
  } else if (folded != sum) {
    std::copy_n(folded, size, sum);
  }
  const std::size_t kept = numeric::KeptOf(encoded.encoding, encoded.count);
  for (const std::byte* const payload : payloads) {
    if (encoded.encoding.kind == Encoding::kRandomK) {
      AddRandomK(payload, encoded.count, kept, first, size, sum);
    } else if (numeric::IndexBytes(encoded.count) == sizeof(std::uint16_t)) {
      AddTopK<std::uint16_t>(payload, kept, first, size, sum);
    } else {
      AddTopK<std::uint32_t>(payload, kept, first, size, sum);
    }
  }
}

}  // namespace

// A few blocks at a time are decoded and summed, and then divided and screened like any floats.
bool FoldEncodedRange(const Combination& combination, const Terms& terms, Range range,
                      std::byte* output) {
  const Encoded& encoded = *combination.encoded;
  PHUB_CHECK(encoded.first + range.end <= encoded.count && !combination.narrows,
             "first={} end={} count={}", encoded.first, range.end, encoded.count);
  constexpr std::size_t kStep = kSumBytes / sizeof(float);
  bool found = false;
  for (std::size_t begin = range.begin; begin < range.end; begin += kStep) {
    const std::size_t size = std::min(kStep, range.end - begin);
    const auto* const folded =
        terms.folded == nullptr ? nullptr : reinterpret_cast<const float*>(terms.folded) + begin;
    std::byte* const at = output + (begin - range.begin) * sizeof(float);
    auto* const sum = reinterpret_cast<float*>(at);
    const auto add = encoded.encoding.kind == Encoding::kInt8 ? SumInt8 : SumSparse;
    add(encoded, terms.inputs, encoded.first + begin, size, folded, sum);
    found |= FoldFloatRange(combination, {at, {}}, {0, size}, at);
  }
  return found;
}

}  // namespace phub::simd
#endif  // HWY_ONCE
