// The definition of sums in fixed point, number by number: exponents by frexp, rounding by
// nearbyint, the sum in 64 bits. Oracles and tests compare bits with it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace phub::oracle {

// The sum of all ranks' gradients. Blocks of `block` elements begin at the first element.
// REQUIRES: equal sizes; f16 and bf16 are widened.
std::vector<float> SumInFixedPoint(const std::vector<std::vector<float>>& gradients,
                                   std::uint32_t block);

// The same for consecutive chunks: blocks begin at each chunk's first element. REQUIRES: the chunks
// have all elements.
std::vector<float> SumInFixedPoint(const std::vector<std::vector<float>>& gradients,
                                   std::uint32_t block, std::span<const std::size_t> chunk_sizes);

}  // namespace phub::oracle
