// A second implementation of kernels.h and optimizers.h: one element at a time, in plain C++, with
// another method for conversions of halves (in double, with nearbyint). Tests compare bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "common/simd/kernels.h"

namespace phub::simd::reference {

// Forces rounding here: the compiler may not contract, keep a wider register or vectorise.
template <class T>
T Rounded(T value) {
  volatile T rounded = value;
  return rounded;
}

// The value of one element of memory, bit by bit.
template <class T>
T At(const std::byte* array, std::size_t i) {
  T value;
  std::memcpy(&value, array + i * sizeof(T), sizeof(T));
  return value;
}
template <class T>
void Put(std::byte* array, std::size_t i, T value) {
  std::memcpy(array + i * sizeof(T), &value, sizeof(T));
}

struct HalfLayout {
  int fraction_bits;
  int exponent_min;  // of normal numbers
  int exponent_bits;
};
inline constexpr HalfLayout kF16Layout{10, -14, 5};
inline constexpr HalfLayout kBf16Layout{7, -126, 8};

float WidenHalf(const HalfLayout& layout, std::uint16_t half);
std::uint16_t NarrowHalf(const HalfLayout& layout, float value);

// Converts from an array of `type` to the accumulation type, and back.
template <class T>
T Load(ElementType type, const std::byte* array, std::size_t i) {
  if constexpr (std::is_same_v<T, float>) {
    if (type == ElementType::kF16) return WidenHalf(kF16Layout, At<std::uint16_t>(array, i));
    if (type == ElementType::kBf16) return WidenHalf(kBf16Layout, At<std::uint16_t>(array, i));
  }
  return At<T>(array, i);
}
template <class T>
void Store(ElementType type, std::byte* array, std::size_t i, T value) {
  if constexpr (std::is_same_v<T, float>) {
    if (type == ElementType::kF16) return Put(array, i, NarrowHalf(kF16Layout, value));
    if (type == ElementType::kBf16) return Put(array, i, NarrowHalf(kBf16Layout, value));
  }
  Put(array, i, value);
}

template <class T>
T CanonicalNan() {
  if constexpr (sizeof(T) == 4) return std::bit_cast<T>(std::uint32_t{0x7fc00000});
  if constexpr (sizeof(T) == 8) return std::bit_cast<T>(std::uint64_t{0x7ff8000000000000});
  return T{};
}

template <class T>
T Lesser(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return CanonicalNan<T>();
    if (a == b) return std::signbit(a) ? a : b;
  }
  return a < b ? a : b;
}
template <class T>
T Greater(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return CanonicalNan<T>();
    if (a == b) return std::signbit(a) ? b : a;
  }
  return a < b ? b : a;
}

template <class T>
T Combined(Reduction reduction, T a, T b) {
  if (reduction == Reduction::kMin) return Lesser(a, b);
  if (reduction == Reduction::kMax) return Greater(a, b);
  const bool product = reduction == Reduction::kProduct;
  if constexpr (std::is_floating_point_v<T>) {
    return Rounded<T>(product ? a * b : a + b);
  } else {
    const auto x = static_cast<std::uint64_t>(a);
    const auto y = static_cast<std::uint64_t>(b);
    if (reduction == Reduction::kBitwiseAnd) return static_cast<T>(x & y);
    if (reduction == Reduction::kBitwiseOr) return static_cast<T>(x | y);
    if (reduction == Reduction::kBitwiseXor) return static_cast<T>(x ^ y);
    return static_cast<T>(product ? x * y : x + y);
  }
}

// The left fold of element i of the inputs, all in `wire`.
template <class T>
T Folded(ElementType wire, Reduction reduction, const std::vector<const std::byte*>& inputs,
         std::size_t i) {
  T value = Load<T>(wire, inputs[0], i);
  const bool extremum = reduction == Reduction::kMin || reduction == Reduction::kMax;
  if (extremum) value = Combined(reduction, value, value);  // a single NaN is made canonical too
  for (std::size_t r = 1; r < inputs.size(); ++r) {
    value = Combined(reduction, value, Load<T>(wire, inputs[r], i));
  }
  return value;
}

// One parameter's update. State is read and written.
template <class T>
T Updated(Optimizer optimizer, const OptimizerArguments& arguments, T gradient, T parameter,
          T* state0, T* state1);
extern template float Updated(Optimizer, const OptimizerArguments&, float, float, float*, float*);
extern template double Updated(Optimizer, const OptimizerArguments&, double, double, double*,
                               double*);

// The new version of one parameter, from the folded terms.
template <class T>
T AfterFold(const Round& round, T value, T parameter, T* state0, T* state1) {
  if constexpr (std::is_floating_point_v<T>) {
    if (round.reduction == Reduction::kMean) value = Rounded(value / static_cast<T>(round.ranks));
    const T clip_value = static_cast<T>(round.arguments.clip_value);
    if (round.arguments.clip_value > 0.0 && value > clip_value) value = clip_value;
    if (round.arguments.clip_value > 0.0 && value < -clip_value) value = -clip_value;
    if (round.optimizer == Optimizer::kNone) return value;
    return Updated(round.optimizer, round.arguments, value, parameter, state0, state1);
  }
  return value;
}

// The new version of one parameter.
template <class T>
T RoundOf(const Round& round, const std::vector<const std::byte*>& inputs, std::size_t i,
          T parameter, T* state0, T* state1) {
  return AfterFold(round, Folded<T>(round.wire, round.reduction, inputs, i), parameter, state0,
                   state1);
}

// The sum of squares for clipping by norm, over values [begin, end): eight running sums, added in
// order.
template <class T>
double SquaredNorm(const std::vector<T>& values, std::size_t begin, std::size_t end) {
  double sums[8] = {};
  for (std::size_t i = begin; i < end; ++i) {
    const double value = static_cast<double>(values[i]);
    double& sum = sums[(i - begin) % 8];
    sum = Rounded(sum + Rounded(value * value));
  }
  double total = 0.0;
  for (const double sum : sums) total = Rounded(total + sum);
  return total;
}

}  // namespace phub::simd::reference
