// Encodes gradients for the wire (common/base/encoding.h). Pure functions, any thread. At run time
// they dispatch to the machine's widest instruction set; every instruction set gives the same
// bytes.
//
// Error feedback. With a `residual`, an array of `count` elements that starts as zeros, the encoder
// encodes y = values + residual, and leaves in the residual what the payload lacks: y minus what a
// decoder makes of it. So whatever one round leaves out is sent later.
//
// - int8: q = y / scale, rounded to nearest even, at most 127 in magnitude. If the scale is 0, so
//   is q.
// - topk: the elements of greatest magnitude; of equal ones, those with a lower index.
// - A block (int8) or chunk (topk, randomk) with NaN or an infinity is sent as NaN, and its
//   residual becomes 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/encoding.h"

namespace phub::simd {

// Memory of an encoder, which grows to the size of the largest chunk.
using EncodeScratch = std::vector<std::uint64_t>;

// Writes EncodedBytes() bytes. residual: may be null. seed: for randomk.
void Encode(const numeric::GradientEncoding& encoding, const float* values, float* residual,
            std::size_t count, std::uint64_t seed, std::byte* payload, EncodeScratch& scratch);

}  // namespace phub::simd
