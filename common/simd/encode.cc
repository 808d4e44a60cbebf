#include "common/simd/encode.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "common/base/check.h"
#include "common/simd/blocks.h"

// This file is compiled once per instruction set: foreach_target.h includes it again for each, and
// must come before everything that depends on the target.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/simd/encode.cc"
#include "hwy/foreach_target.h"
// clang-format on

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace phub::simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The greatest magnitude of a block as bits: that of a NaN or an infinity is at least kInfinity.
HWY_INLINE std::int32_t GreatestMagnitude(const float* values, std::size_t count) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> bits;
  const auto mask = hn::Set(bits, 0x7fffffff);
  auto greatest = hn::Zero(bits);
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto magnitude = hn::And(hn::BitCast(bits, hn::LoadU(d, values + i)), mask);
    greatest = hn::Max(greatest, magnitude);
  }
  std::int32_t result = hn::GetLane(hn::MaxOfLanes(bits, greatest));
  for (; i < count; ++i) {
    std::int32_t one;
    std::memcpy(&one, values + i, sizeof(one));
    result = std::max(result, one & 0x7fffffff);
  }
  return result;
}

// Quantizes elements [i, count), a vector at a time. Returns the first that is left.
template <class D>
HWY_INLINE std::size_t Quantize(D d, const float* values, float scale, std::size_t i,
                                std::size_t count, std::int8_t* to, float* residual) {
  const hn::Rebind<std::int32_t, D> d32;
  const hn::Rebind<std::int8_t, D> d8;
  const auto by = hn::Set(d, scale);
  const auto most = hn::Set(d32, 127), least = hn::Set(d32, -127);
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto value = hn::LoadU(d, values + i);
    const auto near = hn::NearestInt(hn::Div(value, by));
    const auto q = hn::Max(least, hn::Min(most, near));
    hn::StoreU(hn::DemoteTo(d8, q), d8, to + i);
    if (residual == nullptr) continue;
    const auto decoded = hn::Mul(hn::ConvertTo(d, q), by);
    hn::StoreU(hn::Sub(value, decoded), d, residual + i);
  }
  return i;
}

// `values` may be `residual`.
void EncodeBlockKernel(const float* values, float* residual, std::size_t count, float* scale,
                       std::int8_t* to) {
  constexpr std::int32_t kInfinity = 0x7f800000;
  const std::int32_t greatest = GreatestMagnitude(values, count);
  float magnitude;
  std::memcpy(&magnitude, &greatest, sizeof(magnitude));
  *scale = magnitude / 127.0f;
  if (greatest >= kInfinity || *scale == 0.0f) {
    std::fill_n(to, count, std::int8_t{0});
    if (greatest < kInfinity) return;  // the residual has the values
    *scale = std::numeric_limits<float>::quiet_NaN();
    if (residual != nullptr) std::fill_n(residual, count, 0.0f);
    return;
  }
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const std::size_t left = Quantize(d, values, *scale, 0, count, to, residual);
  Quantize(one, values, *scale, left, count, to, residual);
}

// Adds the values to the residual. False if a sum is NaN or infinite.
bool AddToResidualKernel(const float* values, float* residual, std::size_t count) {
  const hn::ScalableTag<float> d;
  auto seen = hn::Zero(d);
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    auto sum = hn::LoadU(d, values + i);
    if (residual != nullptr) {
      sum = hn::Add(sum, hn::LoadU(d, residual + i));
      hn::StoreU(sum, d, residual + i);
    }
    seen = hn::Or(seen, hn::Sub(sum, sum));
  }
  bool finite = hn::AllTrue(d, hn::Eq(seen, hn::Zero(d)));
  for (; i < count; ++i) {
    const float sum = residual == nullptr ? values[i] : values[i] + residual[i];
    if (residual != nullptr) residual[i] = sum;
    finite = finite && sum - sum == 0.0f;
  }
  return finite;
}

}  // namespace HWY_NAMESPACE
}  // namespace phub::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace phub::simd {

HWY_EXPORT(EncodeBlockKernel);
HWY_EXPORT(AddToResidualKernel);

namespace {

using numeric::Encoding;
using numeric::GradientEncoding;

void EncodeInt8(const float* values, float* residual, std::size_t count, std::byte* payload) {
  auto* const to =
      reinterpret_cast<std::int8_t*>(payload + numeric::Int8Blocks(count) * sizeof(float));
  for (std::size_t first = 0; first < count; first += numeric::kInt8Block) {
    const std::size_t size = std::min(numeric::kInt8Block, count - first);
    float* const own = residual == nullptr ? nullptr : residual + first;
    if (own != nullptr) HWY_DYNAMIC_DISPATCH(AddToResidualKernel)(values + first, own, size);
    float scale;
    HWY_DYNAMIC_DISPATCH(EncodeBlockKernel)
    (own == nullptr ? values + first : own, own, size, &scale, to + first);
    std::memcpy(payload + first / numeric::kInt8Block * sizeof(float), &scale, sizeof(scale));
  }
}

std::uint32_t MagnitudeOf(float value) { return std::bit_cast<std::uint32_t>(value) & 0x7fffffff; }

// An element's rank among the others, for selection: greater magnitudes first, then lower indices.
std::uint64_t OrderOf(float value, std::size_t index) {
  return std::uint64_t{MagnitudeOf(value)} << 32 |
         (0xffffffffu - static_cast<std::uint32_t>(index));
}

// The least OrderOf() of the `kept` elements that have the greatest. Elements are counted by the
// upper bits of their magnitude first, so that only the elements of one bin are compared.
std::uint64_t LeastKept(const float* values, std::size_t count, std::size_t kept,
                        EncodeScratch& scratch) {
  constexpr int kShift = 20;
  std::array<std::uint32_t, std::size_t{1} << (31 - kShift)> bins{};
  for (std::size_t i = 0; i < count; ++i) ++bins[MagnitudeOf(values[i]) >> kShift];
  std::size_t bin = bins.size() - 1, above = 0;
  while (above + bins[bin] < kept) above += bins[bin--];
  scratch.clear();
  for (std::size_t i = 0; i < count; ++i) {
    if (MagnitudeOf(values[i]) >> kShift == bin) scratch.push_back(OrderOf(values[i], i));
  }
  const auto last = scratch.begin() + static_cast<std::ptrdiff_t>(kept - above - 1);
  std::nth_element(scratch.begin(), last, scratch.end(), std::greater<>());
  return *last;
}

void PutIndex(std::byte* indices, std::size_t bytes, std::size_t i, std::size_t index) {
  const auto value = static_cast<std::uint32_t>(index);
  std::memcpy(indices + i * bytes, &value, bytes);  // little-endian
}

// The element is sent: the payload lacks nothing of it.
void Send(float value, float* residual, std::size_t index, std::byte* values, std::size_t i) {
  std::memcpy(values + i * sizeof(float), &value, sizeof(value));
  if (residual != nullptr) residual[index] = 0.0f;
}

void EncodeTopK(const float* values, float* residual, std::size_t count, std::size_t kept,
                std::byte* payload, EncodeScratch& scratch) {
  const std::uint64_t least = LeastKept(values, count, kept, scratch);
  std::byte* const indices = payload + kept * sizeof(float);
  const std::size_t index_bytes = numeric::IndexBytes(count);
  std::size_t sent = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (OrderOf(values[i], i) < least) continue;
    PutIndex(indices, index_bytes, sent, i);
    Send(values[i], residual, i, payload, sent++);
  }
  PHUB_CHECK(sent == kept, "sent={} kept={}", sent, kept);
}

void EncodeRandomK(const float* values, float* residual, std::size_t count, std::size_t kept,
                   std::uint64_t seed, std::byte* payload) {
  for (std::size_t number = 0; number < kept; ++number) {
    const std::size_t place = numeric::RandomPlace(seed, count, kept, number);
    Send(values[place], residual, place, payload + sizeof(seed), number);
  }
}

// All values are NaN. Where an index is needed, those of the first elements.
void EncodeNan(const GradientEncoding& encoding, float* residual, std::size_t count,
               std::size_t kept, std::byte* payload) {
  const bool has_seed = encoding.kind == Encoding::kRandomK;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (std::size_t i = 0; i < kept; ++i) {
    std::memcpy(payload + (has_seed ? sizeof(std::uint64_t) : 0) + i * sizeof(float), &kNan,
                sizeof(kNan));
    if (!has_seed) PutIndex(payload + kept * sizeof(float), numeric::IndexBytes(count), i, i);
  }
  if (residual != nullptr) std::fill_n(residual, count, 0.0f);
}

}  // namespace

void Encode(const GradientEncoding& encoding, const float* values, float* residual,
            std::size_t count, std::uint64_t seed, std::byte* payload, EncodeScratch& scratch) {
  PHUB_CHECK(!encoding.none() && count > 0, "count={}", count);
  if (encoding.kind == Encoding::kInt8) return EncodeInt8(values, residual, count, payload);
  const std::size_t kept = numeric::KeptOf(encoding, count);
  if (encoding.kind == Encoding::kRandomK) std::memcpy(payload, &seed, sizeof(seed));
  if (!HWY_DYNAMIC_DISPATCH(AddToResidualKernel)(values, residual, count)) {
    return EncodeNan(encoding, residual, count, kept, payload);
  }
  const float* const from = residual == nullptr ? values : residual;
  if (encoding.kind == Encoding::kRandomK) {
    return EncodeRandomK(from, residual, count, kept, seed, payload);
  }
  EncodeTopK(from, residual, count, kept, payload, scratch);
}

}  // namespace phub::simd
#endif  // HWY_ONCE
