// Sums of floating-point numbers as sums of integers, for sums in the network. Pure functions, any
// thread. The result is a function of the gradients, the number of ranks and the size of a block
// only: integers may be added in any order and anywhere, so every path gives the same bits.
//
// For each block of values:
//   1. Each rank computes the block's exponent, the greatest exponent field of its values as f32.
//      Values of 16-bit types are widened first, which is exact.
//   2. All ranks use the greatest exponent E of all ranks. With e = E - 126, every value is below
//      2^e in magnitude, also zeros and subnormals (E = 0).
//   3. Each rank sends x -> round(x * scale), with scale = (2^31 - 1) / (n * 2^e) in f64, to
//      nearest even. n values never overflow 32 bits, for n up to kFixedRanksMax.
//   4. The sum is f32(sum of integers / scale), divided in f64. A mean divides this sum by n in
//      f32, as on every other path (common/simd/kernels.h).
// E = 255 (a rank has a NaN or an infinity): the whole block is NaN. A sum of zeros is +0, also if
// every rank has -0.
//
// Error of a sum, compared to the exact sum of the values: at most
//   n^2 * 2^(e-32) * (1 + 2^-19) + half a unit in the last place of the result * (1 + 2^-27).
// Each of n values is off by half an integer at most; the factors cover the roundings of f64.
//
// simd::SumFixed computes all of this in one call, for the gradients of all ranks.
//
// Sums of i32 need none of this: they wrap, as on every other path.
// Callers must keep the floating-point mode of simd::SetFloatingPointMode().
#pragma once

#include <cstdint>
#include <span>

namespace phub::aggregation {

inline constexpr std::uint32_t kFixedRanksMax = 254;
inline constexpr std::uint8_t kNotFinite = 255;
// Elements of a block. The default fills a datagram of 1400 bytes.
inline constexpr std::uint32_t kFixedBlockDefault = 350;
inline constexpr std::uint32_t kFixedBlockMin = 16;
inline constexpr std::uint32_t kFixedBlockMax = 848;
// 1.5 * 2^52: a sum with it has no fraction bits, so adding and subtracting it rounds a number
// below 2^51 to an integer, to nearest even. Unlike std::nearbyint, compilers vectorize it.
inline constexpr double kFixedRounder = 6755399441055744.0;

// The factor of step 3. REQUIRES: 1 <= ranks <= kFixedRanksMax, exponent < kNotFinite.
double FixedScale(std::uint8_t exponent, std::uint32_t ranks);

// The greatest exponent field of the values, 0 for none.
std::uint8_t ExponentOf(std::span<const float> values);

// A rank's contribution. REQUIRES: 1 <= ranks <= kFixedRanksMax, equal sizes, and that `exponent`
// is at least ExponentOf(values). All zero if the exponent is kNotFinite.
void ToFixed(std::span<const float> values, std::uint8_t exponent, std::uint32_t ranks,
             std::span<std::int32_t> fixed);

// The sum, from the sum of all contributions. All NaN if the exponent is kNotFinite.
void FromFixed(std::span<const std::int32_t> sum, std::uint8_t exponent, std::uint32_t ranks,
               std::span<float> result);

}  // namespace phub::aggregation
