#include "bench/kernels/ceilings.h"

#include <algorithm>
#include <array>

// This file is compiled once per instruction set: foreach_target.h includes it again for each, and
// must come before everything that depends on the target.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/kernels/ceilings.cc"
#include "hwy/foreach_target.h"
// clang-format on

#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace phub::bench {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Tag = hn::ScalableTag<std::uint32_t>;
using Vector = hn::Vec<Tag>;

// Combines everything that was loaded into one word, so that the compiler cannot remove a load.
struct Loads {
  Vector seen0;
  Vector seen1;
  Vector seen2;
  Vector seen3;
};
HWY_INLINE Loads NoLoads() {
  const Vector zero = hn::Zero(Tag());
  return {zero, zero, zero, zero};
}

HWY_INLINE void Read(const std::uint32_t* at, std::size_t lanes, Loads& loads) {
  const Tag d;
  loads.seen0 = hn::Or(loads.seen0, hn::Load(d, at));
  loads.seen1 = hn::Or(loads.seen1, hn::Load(d, at + lanes));
  loads.seen2 = hn::Or(loads.seen2, hn::Load(d, at + 2 * lanes));
  loads.seen3 = hn::Or(loads.seen3, hn::Load(d, at + 3 * lanes));
}

HWY_INLINE void Update(std::uint32_t* at, std::size_t lanes) {
  const Tag d;
  const Vector one = hn::Set(d, 1u);
  hn::Store(hn::Add(hn::Load(d, at), one), d, at);
  hn::Store(hn::Add(hn::Load(d, at + lanes), one), d, at + lanes);
  hn::Store(hn::Add(hn::Load(d, at + 2 * lanes), one), d, at + 2 * lanes);
  hn::Store(hn::Add(hn::Load(d, at + 3 * lanes), one), d, at + 3 * lanes);
}

template <bool kNonTemporal>
HWY_INLINE void Write(std::uint32_t* at, std::size_t lanes) {
  const Tag d;
  const Vector value = hn::Set(d, 0x3f800000u);  // 1.0f
  for (std::size_t i = 0; i < 4; ++i) {
    if constexpr (kNonTemporal) {
      hn::Stream(value, d, at + i * lanes);
    } else {
      hn::Store(value, d, at + i * lanes);
    }
  }
}

std::uint32_t WordOf(const Loads& loads) {
  const Vector all = hn::Or(hn::Or(loads.seen0, loads.seen1), hn::Or(loads.seen2, loads.seen3));
  return hn::GetLane(hn::MaxOfLanes(Tag(), all));
}

// The streams of one access.
class Group {
 public:
  Group(std::span<const Stream> streams, Access access) {
    for (const Stream& stream : streams) {
      if (stream.access == access) streams_[count_++] = stream;
    }
  }
  // Calls step(the first word of 4 vectors) over elements [begin, begin + elements) of each stream.
  template <class Step>
  HWY_INLINE void ForEach(std::size_t begin, std::size_t elements, const Step& step) const {
    const std::size_t words = 4 * hn::Lanes(Tag());
    for (std::size_t i = 0; i < count_; ++i) {
      const Stream& stream = streams_[i];
      auto* at = reinterpret_cast<std::uint32_t*>(stream.data + begin * stream.element_bytes);
      const auto* const end = at + elements * stream.element_bytes / sizeof(std::uint32_t);
      for (; at < end; at += words) step(at);
    }
  }

 private:
  std::array<Stream, kStreamsMax> streams_{};
  std::size_t count_ = 0;
};

template <bool kNonTemporal>
std::uint32_t MoveAll(std::span<const Stream> streams, std::size_t count, std::size_t block) {
  const std::size_t lanes = hn::Lanes(Tag());
  const Group reads(streams, Access::kRead);
  const Group updates(streams, Access::kUpdate);
  const Group writes(streams, Access::kWrite);
  Loads loads = NoLoads();
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t elements = std::min(block, count - begin);
    reads.ForEach(begin, elements, [&](std::uint32_t* at) HWY_ATTR { Read(at, lanes, loads); });
    updates.ForEach(begin, elements, [&](std::uint32_t* at) HWY_ATTR { Update(at, lanes); });
    writes.ForEach(begin, elements,
                   [&](std::uint32_t* at) HWY_ATTR { Write<kNonTemporal>(at, lanes); });
  }
  if (kNonTemporal) hwy::FlushStream();
  return WordOf(loads);
}

std::uint32_t MoveStreamsKernel(std::span<const Stream> streams, std::size_t count,
                                const CeilingForm& form) {
  const auto narrowest = std::min_element(
      streams.begin(), streams.end(),
      [](const Stream& a, const Stream& b) { return a.element_bytes < b.element_bytes; });
  const std::size_t block = form.block_bytes / narrowest->element_bytes;
  return form.non_temporal ? MoveAll<true>(streams, count, block)
                           : MoveAll<false>(streams, count, block);
}

std::uint32_t LoadOnlyKernel(const std::byte* data, std::size_t bytes) {
  const std::size_t lanes = hn::Lanes(Tag());
  const auto* at = reinterpret_cast<const std::uint32_t*>(data);
  const auto* const end = at + bytes / sizeof(std::uint32_t);
  Loads loads = NoLoads();
  for (; at < end; at += 4 * lanes) Read(at, lanes, loads);
  return WordOf(loads);
}

// Enough sums of floats to hide the latency of an addition.
using Floats = hn::ScalableTag<float>;
struct Sums {
  hn::Vec<Floats> sum0;
  hn::Vec<Floats> sum1;
  hn::Vec<Floats> sum2;
  hn::Vec<Floats> sum3;
};
HWY_INLINE Sums NoSums() {
  const auto zero = hn::Zero(Floats());
  return {zero, zero, zero, zero};
}

std::uint32_t WordOf(const Sums& sums) {
  const auto all = hn::Add(hn::Add(sums.sum0, sums.sum1), hn::Add(sums.sum2, sums.sum3));
  return hn::GetLane(hn::MaxOfLanes(Tag(), hn::BitCast(Tag(), all)));
}

// Widens the elements at even and at odd places separately.
HWY_INLINE void AddBf16(const std::uint32_t* at, hn::Vec<Floats>& even, hn::Vec<Floats>& odd) {
  const Tag d;
  const auto both = hn::Load(d, at);
  even = hn::Add(even, hn::BitCast(Floats(), hn::ShiftLeft<16>(both)));
  odd = hn::Add(odd, hn::BitCast(Floats(), hn::And(both, hn::Set(d, 0xffff0000u))));
}

HWY_INLINE void AddF16(const hwy::float16_t* at, hn::Vec<Floats>& sum) {
  const hn::Rebind<hwy::float16_t, Floats> d16;
  sum = hn::Add(sum, hn::PromoteTo(Floats(), hn::Load(d16, at)));
}

std::uint32_t WidenAndAddKernel(numeric::ElementType type, const std::byte* data,
                                std::size_t bytes) {
  const std::size_t lanes = hn::Lanes(Floats());
  Sums sums = NoSums();
  if (type == numeric::ElementType::kBf16) {
    const auto* at = reinterpret_cast<const std::uint32_t*>(data);
    const auto* const end = at + bytes / sizeof(std::uint32_t);
    for (; at < end; at += 2 * lanes) {
      AddBf16(at, sums.sum0, sums.sum1);
      AddBf16(at + lanes, sums.sum2, sums.sum3);
    }
    return WordOf(sums);
  }
  const auto* at = reinterpret_cast<const hwy::float16_t*>(data);
  const auto* const end = at + bytes / sizeof(hwy::float16_t);
  for (; at < end; at += 4 * lanes) {
    AddF16(at, sums.sum0);
    AddF16(at + lanes, sums.sum1);
    AddF16(at + 2 * lanes, sums.sum2);
    AddF16(at + 3 * lanes, sums.sum3);
  }
  return WordOf(sums);
}

void NarrowToF16Kernel(std::byte* data, std::size_t bytes) {
  const Floats d;
  const hn::Rebind<hwy::float16_t, Floats> d16;
  const std::size_t lanes = hn::Lanes(d);
  auto* at = reinterpret_cast<hwy::float16_t*>(data);
  auto* const end = at + bytes / sizeof(hwy::float16_t);
  auto value = hn::Iota(d, 1.0f);
  for (; at < end; at += 4 * lanes) {
    for (std::size_t i = 0; i < 4; ++i) hn::Store(hn::DemoteTo(d16, value), d16, at + i * lanes);
    value = hn::Neg(value);  // keeps the compiler from narrowing the value once, before the loop
  }
}

std::uint32_t DecodeInt8Kernel(std::span<const std::byte* const> payloads, std::size_t count) {
  const Floats d;
  const hn::Rebind<std::int8_t, Floats> d8;
  const hn::Rebind<std::int32_t, Floats> d32;
  const std::size_t lanes = hn::Lanes(d);
  Sums sums = NoSums();
  for (const std::byte* const payload : payloads) {
    const auto scale = hn::Set(d, *reinterpret_cast<const float*>(payload));
    const auto* at =
        reinterpret_cast<const std::int8_t*>(payload) + numeric::Int8Blocks(count) * sizeof(float);
    const auto step = [&](std::size_t i, hn::Vec<Floats>& sum) HWY_ATTR {
      const auto whole = hn::PromoteTo(d32, hn::LoadU(d8, at + i));
      sum = hn::Add(sum, hn::Mul(hn::ConvertTo(d, whole), scale));
    };
    for (std::size_t i = 0; i < count; i += 4 * lanes) {
      step(i, sums.sum0);
      step(i + lanes, sums.sum1);
      step(i + 2 * lanes, sums.sum2);
      step(i + 3 * lanes, sums.sum3);
    }
  }
  return WordOf(sums);
}

std::uint32_t DivideAndRootKernel(const float* data, std::size_t count) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  const auto divisor = hn::Set(d, 3.0f);
  const auto step = [&](const float* at, hn::Vec<Floats>& sum) HWY_ATTR {
    const auto value = hn::Load(d, at);
    const auto root = hn::Div(hn::Sqrt(value), divisor);
    sum = hn::Add(sum, hn::Div(value, root));
  };
  Sums sums = NoSums();
  for (std::size_t i = 0; i < count; i += 4 * lanes) {
    step(data + i, sums.sum0);
    step(data + i + lanes, sums.sum1);
    step(data + i + 2 * lanes, sums.sum2);
    step(data + i + 3 * lanes, sums.sum3);
  }
  return WordOf(sums);
}

}  // namespace HWY_NAMESPACE
}  // namespace phub::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace phub::bench {

HWY_EXPORT(MoveStreamsKernel);
HWY_EXPORT(LoadOnlyKernel);
HWY_EXPORT(WidenAndAddKernel);
HWY_EXPORT(NarrowToF16Kernel);
HWY_EXPORT(DivideAndRootKernel);
HWY_EXPORT(DecodeInt8Kernel);

namespace {

template <class Index>
void AddAtIndices(const std::byte* payload, std::size_t kept, float* sum) {
  const auto* const values = reinterpret_cast<const float*>(payload);
  const auto* const indices = reinterpret_cast<const Index*>(payload + kept * sizeof(float));
  for (std::size_t i = 0; i < kept; ++i) sum[indices[i]] += values[i];
}

void AddAtRandom(const std::byte* payload, std::size_t count, std::size_t kept, float* sum) {
  const std::uint64_t seed = *reinterpret_cast<const std::uint64_t*>(payload);
  const auto* const values = reinterpret_cast<const float*>(payload + sizeof(seed));
  for (std::size_t i = 0; i < kept; ++i) {
    sum[numeric::RandomPlace(seed, count, kept, i)] += values[i];
  }
}

}  // namespace

std::uint32_t MoveStreams(std::span<const Stream> streams, std::size_t count,
                          const CeilingForm& form) {
  return HWY_DYNAMIC_DISPATCH(MoveStreamsKernel)(streams, count, form);
}

std::uint32_t LoadOnly(const std::byte* data, std::size_t bytes) {
  return HWY_DYNAMIC_DISPATCH(LoadOnlyKernel)(data, bytes);
}

std::uint32_t WidenAndAdd(numeric::ElementType type, const std::byte* data, std::size_t bytes) {
  return HWY_DYNAMIC_DISPATCH(WidenAndAddKernel)(type, data, bytes);
}

void NarrowToF16(std::byte* data, std::size_t bytes) {
  HWY_DYNAMIC_DISPATCH(NarrowToF16Kernel)(data, bytes);
}

std::uint32_t DecodeAndAdd(const numeric::GradientEncoding& encoding,
                           std::span<const std::byte* const> payloads, std::size_t count,
                           float* sum) {
  if (encoding.kind == numeric::Encoding::kInt8) {
    return HWY_DYNAMIC_DISPATCH(DecodeInt8Kernel)(payloads, count);
  }
  const std::size_t kept = numeric::KeptOf(encoding, count);
  for (const std::byte* const payload : payloads) {
    if (encoding.kind == numeric::Encoding::kRandomK) {
      AddAtRandom(payload, count, kept, sum);
    } else if (numeric::IndexBytes(count) == sizeof(std::uint16_t)) {
      AddAtIndices<std::uint16_t>(payload, kept, sum);
    } else {
      AddAtIndices<std::uint32_t>(payload, kept, sum);
    }
  }
  return 0;
}

std::uint32_t DivideAndRoot(const float* data, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(DivideAndRootKernel)(data, count);
}

}  // namespace phub::bench
#endif  // HWY_ONCE
