// Encodings of gradients, written plainly and apart from common/simd: the reference of unit tests,
// of the simulation and of random jobs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/encoding.h"

namespace phub::simd::reference {

// The payload of one chunk. residual: null, or as large as the values; see common/simd/encode.h.
std::vector<std::byte> Encoded(const numeric::GradientEncoding& encoding,
                               std::span<const float> values, std::vector<float>* residual,
                               std::uint64_t seed);
// The elements that a payload stands for.
std::vector<float> Decoded(const numeric::GradientEncoding& encoding, const std::byte* payload,
                           std::size_t count);
// The sum of the decoded elements in the order of the payloads.
std::vector<float> SumOfEncoded(const numeric::GradientEncoding& encoding,
                                std::span<const std::byte* const> payloads, std::size_t count);
// What the daemon makes of a rank's gradient: each chunk encoded and decoded.
std::vector<float> Transmitted(const numeric::GradientEncoding& encoding,
                               std::span<const float> gradient, std::size_t chunk_elements,
                               std::vector<float>* residual, std::uint32_t key,
                               std::uint64_t iteration);

}  // namespace phub::simd::reference
