#include "tests/support/fixed_sum_reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>

namespace phub::oracle {
namespace {

using Gradients = std::vector<std::vector<float>>;

// The least e of at least -126 with |value| < 2^e for every value; nothing if one is not finite.
std::optional<int> ExponentOf(const Gradients& gradients, std::size_t begin, std::size_t end) {
  int greatest = -126;
  for (const std::vector<float>& values : gradients) {
    for (std::size_t i = begin; i < end; ++i) {
      if (!std::isfinite(values[i])) return std::nullopt;
      int exponent = 0;
      std::frexp(values[i], &exponent);
      if (values[i] != 0) greatest = std::max(greatest, exponent);
    }
  }
  return greatest;
}

void SumBlock(const Gradients& gradients, std::size_t begin, std::size_t end,
              std::vector<float>& sum) {
  const std::optional<int> e = ExponentOf(gradients, begin, end);
  for (std::size_t i = begin; i < end; ++i) {
    if (!e) {
      sum[i] = std::numeric_limits<float>::quiet_NaN();
      continue;
    }
    const double scale = std::ldexp(2147483647.0 / static_cast<double>(gradients.size()), -*e);
    std::int64_t total = 0;
    for (const std::vector<float>& values : gradients) {
      volatile const double scaled = static_cast<double>(values[i]) * scale;  // rounded here
      total += static_cast<std::int64_t>(std::nearbyint(scaled));
    }
    sum[i] = static_cast<float>(static_cast<double>(total) / scale);
  }
}

}  // namespace

std::vector<float> SumInFixedPoint(const Gradients& gradients, std::uint32_t block) {
  const std::size_t all[] = {gradients.front().size()};
  return SumInFixedPoint(gradients, block, all);
}

std::vector<float> SumInFixedPoint(const Gradients& gradients, std::uint32_t block,
                                   std::span<const std::size_t> chunk_sizes) {
  std::vector<float> sum(gradients.front().size());
  std::size_t begin = 0;
  for (const std::size_t size : chunk_sizes) {
    const std::size_t end = begin + size;
    for (; begin < end; begin = std::min(end, begin + block)) {
      SumBlock(gradients, begin, std::min(end, begin + block), sum);
    }
  }
  return sum;
}

}  // namespace phub::oracle
