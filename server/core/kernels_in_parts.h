// The kernels of common/simd over one chunk, in parts if the work is long (long_work.h): a chunk of
// 4 MiB from 1024 ranks takes a second. The results have the same bits, since kernels compute each
// element by itself.
//
// Core loop's thread; nothing allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/simd/kernels.h"
#include "server/core/long_work.h"

namespace phub::server {

// See simd::Fold, simd::SumFixed and simd::ApplyRound.
bool FoldInParts(LongWork* work, simd::ElementType wire, simd::Reduction reduction,
                 const simd::Terms& terms, std::size_t count, std::byte* accumulator,
                 const simd::Encoded& encoded = {});
bool ApplyInParts(LongWork* work, const simd::Round& round, const simd::Terms& terms,
                  std::size_t count, const simd::RoundMemory& memory);
bool SumFixedInParts(LongWork* work, simd::ElementType wire, std::uint32_t block,
                     std::span<const std::byte* const> gradients, std::size_t count,
                     std::byte* sum);
// Both at once: sums the gradients in fixed point, a few blocks at a time, so that the sums stay in
// the caches until they are applied. True if the sum is not finite.
bool ApplyFixedInParts(LongWork* work, const simd::Round& round, std::uint32_t block,
                       std::span<const std::byte* const> gradients, std::size_t count,
                       const simd::RoundMemory& memory);

}  // namespace phub::server
