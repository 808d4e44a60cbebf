// Sums in fixed point: the functions of common/aggregation/fixed_point.h for all ranks at once.
//
// Integers of up to 32 bits, and their sums, are exact in f64. So the sum of rounded products needs
// no conversion to integers, and has the value that integers would have.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "common/aggregation/fixed_point.h"
#include "common/base/check.h"
#include "common/simd/blocks.h"

// This file is compiled once per instruction set: foreach_target.h includes it again for each, and
// must come before everything that depends on the target.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/simd/fixed_sum.cc"
#include "hwy/foreach_target.h"
// clang-format on

#include "common/simd/formats-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace phub::simd {
namespace HWY_NAMESPACE {

using Gradients = std::span<const std::byte* const>;

template <class Format>
const typename Format::Element* At(const std::byte* gradient, std::size_t element) {
  return reinterpret_cast<const typename Format::Element*>(gradient) + element;
}

// The elements of an array that is shorter than a vector, then zeros.
template <class Format, class D>
HWY_INLINE hn::Vec<D> LoadFew(D d, const typename Format::Element* at, std::size_t count) {
  HWY_ALIGN typename Format::Element padded[hn::MaxLanes(D())] = {};
  std::memcpy(padded, at, count * sizeof(*at));
  return Format::Load(d, padded);
}

// aggregation::ExponentOf of the elements [begin, begin + count) of all gradients.
template <class Format>
HWY_INLINE std::uint8_t ExponentOfAll(Gradients gradients, std::size_t begin, std::size_t count) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> bits;
  const std::size_t lanes = hn::Lanes(d);
  const auto mask = hn::Set(bits, kMagnitudeMask);
  auto greatest0 = hn::Zero(bits);
  auto greatest1 = greatest0;
  for (const std::byte* const gradient : gradients) {
    const auto* const at = At<Format>(gradient, begin);
    const auto magnitude = [&](std::size_t i) HWY_ATTR {
      return hn::And(hn::BitCast(bits, Format::Load(d, at + i)), mask);
    };
    if (count < lanes) {
      const auto few = hn::BitCast(bits, LoadFew<Format>(d, at, count));
      greatest0 = hn::Max(greatest0, hn::And(few, mask));
      continue;
    }
    std::size_t i = 0;
    for (; i + 2 * lanes <= count; i += 2 * lanes) {
      greatest0 = hn::Max(greatest0, magnitude(i));
      greatest1 = hn::Max(greatest1, magnitude(i + lanes));
    }
    if (i + lanes <= count) greatest0 = hn::Max(greatest0, magnitude(i));
    greatest1 = hn::Max(greatest1, magnitude(count - lanes));  // may overlap what is done
  }
  const auto greatest = hn::MaxOfLanes(bits, hn::Max(greatest0, greatest1));
  return static_cast<std::uint8_t>(hn::GetLane(greatest) >> 23);
}

template <class D, class V, class F>
HWY_INLINE V Rounded(D d, V scale, F values) {
  const V rounder = hn::Set(d, aggregation::kFixedRounder);
  return hn::Sub(hn::Add(hn::Mul(hn::PromoteTo(d, values), scale), rounder), rounder);
}

// The finished sums, rounded to f32. Highway's scalar code never narrows to an infinity.
template <class D, class V>
HWY_INLINE hn::Vec<hn::Rebind<float, D>> Finished([[maybe_unused]] D d, V sum, V scale) {
  const hn::Rebind<float, D> narrow;
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(narrow, static_cast<float>(hn::GetLane(sum) / hn::GetLane(scale)));
#else
  return hn::DemoteTo(narrow, hn::Div(sum, scale));
#endif
}

// The elements of one vector. `load` gives those of a gradient.
template <class D, class Load>
HWY_INLINE hn::Vec<hn::Rebind<float, D>> SumVector(D d, Gradients gradients, hn::Vec<D> scale,
                                                   Load load) {
  auto sum = hn::Zero(d);
  for (const std::byte* const gradient : gradients) {
    sum = hn::Add(sum, Rounded(d, scale, load(gradient)));
  }
  return Finished(d, sum, scale);
}

// Four vectors at once, so that additions of different vectors overlap.
template <class Format, class D>
HWY_INLINE void SumFour(D d, Gradients gradients, std::size_t element, hn::Vec<D> scale,
                        float* sum) {
  const hn::Rebind<float, D> narrow;
  const std::size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  for (const std::byte* const gradient : gradients) {
    const auto* const at = At<Format>(gradient, element);
    sum0 = hn::Add(sum0, Rounded(d, scale, Format::Load(narrow, at)));
    sum1 = hn::Add(sum1, Rounded(d, scale, Format::Load(narrow, at + lanes)));
    sum2 = hn::Add(sum2, Rounded(d, scale, Format::Load(narrow, at + 2 * lanes)));
    sum3 = hn::Add(sum3, Rounded(d, scale, Format::Load(narrow, at + 3 * lanes)));
  }
  hn::StoreU(Finished(d, sum0, scale), narrow, sum);
  hn::StoreU(Finished(d, sum1, scale), narrow, sum + lanes);
  hn::StoreU(Finished(d, sum2, scale), narrow, sum + 2 * lanes);
  hn::StoreU(Finished(d, sum3, scale), narrow, sum + 3 * lanes);
}

// Sums the elements [begin, begin + count) of all gradients.
template <class Format>
HWY_INLINE void SumBlock(Gradients gradients, std::size_t begin, std::size_t count, double factor,
                         float* sum) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> narrow;
  const std::size_t lanes = hn::Lanes(d);
  const auto scale = hn::Set(d, factor);
  const auto vector = [&](std::size_t i) HWY_ATTR {
    const auto load = [&](const std::byte* gradient) HWY_ATTR {
      return Format::Load(narrow, At<Format>(gradient, begin + i));
    };
    hn::StoreU(SumVector(d, gradients, scale, load), narrow, sum + i);
  };
  if (count < lanes) {
    const auto load = [&](const std::byte* gradient) HWY_ATTR {
      return LoadFew<Format>(narrow, At<Format>(gradient, begin), count);
    };
    HWY_ALIGN float few[hn::MaxLanes(narrow)];
    hn::StoreU(SumVector(d, gradients, scale, load), narrow, few);
    std::memcpy(sum, few, count * sizeof(float));
    return;
  }
  std::size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    SumFour<Format>(d, gradients, begin + i, scale, sum + i);
  }
  for (; i + lanes <= count; i += lanes) vector(i);
  if (i < count) vector(count - lanes);  // overlaps what is done, with the same results
}

template <class Format>
bool SumFixedAs(std::size_t block, Gradients gradients, std::size_t count, float* sum) {
  const auto ranks = static_cast<std::uint32_t>(gradients.size());
  // Below this exponent, kFixedRanksMax times the greatest value is finite.
  constexpr std::uint8_t kMayOverflow = 254 - 8;
  static_assert(aggregation::kFixedRanksMax <= 1u << 8);
  bool non_finite = false;
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t size = std::min(block, count - begin);
    const std::uint8_t exponent = ExponentOfAll<Format>(gradients, begin, size);
    float* const at = sum + begin;
    if (exponent == aggregation::kNotFinite) {
      std::fill_n(at, size, std::numeric_limits<float>::quiet_NaN());
      non_finite = true;
      continue;
    }
    SumBlock<Format>(gradients, begin, size, aggregation::FixedScale(exponent, ranks), at);
    if (exponent < kMayOverflow) continue;
    non_finite |= HasNonFinite(ElementType::kF32, reinterpret_cast<const std::byte*>(at), size);
  }
  return non_finite;
}

bool SumFixedKernel(ElementType wire, std::size_t block, Gradients gradients, std::size_t count,
                    std::byte* output) {
  auto* const sum = reinterpret_cast<float*>(output);
  if (wire == ElementType::kF16) return SumFixedAs<F16>(block, gradients, count, sum);
  if (wire == ElementType::kBf16) return SumFixedAs<Bf16>(block, gradients, count, sum);
  return SumFixedAs<Plain<float>>(block, gradients, count, sum);
}

}  // namespace HWY_NAMESPACE
}  // namespace phub::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace phub::simd {

HWY_EXPORT(SumFixedKernel);

bool SumFixed(ElementType wire, std::size_t block, std::span<const std::byte* const> gradients,
              std::size_t count, std::byte* sum) {
  PHUB_CHECK(wire == ElementType::kF32 || numeric::IsHalf(wire), "wire={}",
             numeric::ToString(wire));
  PHUB_CHECK(block > 0 && !gradients.empty() && gradients.size() <= aggregation::kFixedRanksMax,
             "block={} gradients={}", block, gradients.size());
  return HWY_DYNAMIC_DISPATCH(SumFixedKernel)(wire, block, gradients, count, sum);
}

}  // namespace phub::simd
#endif  // HWY_ONCE
