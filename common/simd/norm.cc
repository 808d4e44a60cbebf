// Squared norms and scaling, for clipping by a global norm. Plain loops: the order of every sum is
// the same on every machine. Compilers vectorize them.
#include <array>
#include <cstring>

#include "common/base/check.h"
#include "common/simd/kernels.h"

namespace phub::simd {
namespace {

// Number of running sums; element i is added to sum i % kSums. Enough to hide the latency of
// additions, and a multiple of every vector's lanes.
constexpr std::size_t kSums = 8;

template <class T, bool divides>
double DivideAndSquareAs(T divisor, T* array, std::size_t count) {
  std::array<double, kSums> sums{};
  const auto take = [&](std::size_t i, std::size_t sum) {
    if constexpr (divides) array[i] /= divisor;
    const auto value = static_cast<double>(array[i]);
    sums[sum] += value * value;
  };
  const std::size_t whole = count - count % kSums;
  for (std::size_t i = 0; i < whole; i += kSums) {
    for (std::size_t sum = 0; sum < kSums; ++sum) take(i + sum, sum);
  }
  for (std::size_t i = whole; i < count; ++i) take(i, i - whole);
  double total = 0.0;
  for (const double sum : sums) total += sum;
  return total;
}

template <class T>
void ScaleAs(T factor, T* array, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) array[i] *= factor;
}

// With divisor 1 the array is only read.
template <class T>
double DivideAndSquareAs(std::uint32_t divisor, std::byte* array, std::size_t count) {
  T* const values = reinterpret_cast<T*>(array);
  return divisor == 1 ? DivideAndSquareAs<T, false>(T{1}, values, count)
                      : DivideAndSquareAs<T, true>(static_cast<T>(divisor), values, count);
}

}  // namespace

double DivideAndSquare(ElementType accumulation, std::uint32_t divisor, std::byte* array,
                       std::size_t count) {
  if (accumulation == ElementType::kF32) {
    return DivideAndSquareAs<float>(divisor, array, count);
  }
  PHUB_CHECK(accumulation == ElementType::kF64, "type={}", numeric::ToString(accumulation));
  return DivideAndSquareAs<double>(divisor, array, count);
}

void Scale(ElementType accumulation, double factor, std::byte* array, std::size_t count) {
  if (accumulation == ElementType::kF32) {
    return ScaleAs(static_cast<float>(factor), reinterpret_cast<float*>(array), count);
  }
  PHUB_CHECK(accumulation == ElementType::kF64, "type={}", numeric::ToString(accumulation));
  ScaleAs(factor, reinterpret_cast<double*>(array), count);
}

}  // namespace phub::simd
