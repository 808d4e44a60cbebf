// Third stage: turns the terms of a whole round into the chunk's next version, in one pass that
// sums, updates, and writes every copy of the result. Core loop's thread; nothing allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "server/core/job_shard.h"

namespace phub::server::optimize {

// Whether to write results with non-temporal stores, which bypass the caches. True if every rank
// gets them in its own memory and the job's results do not fit into the caches, so that they would
// be evicted before a worker reads them.
bool StreamsResults(const JobShard& shard, std::size_t own_count);

// Makes version chunk.applied + 1. The caller increments chunk.applied. Returns true if the round
// is a reduction whose result (in the accumulation type) is not finite.
//   terms         for kReduce, in rank order; for kAssign and kMove, the root's payload in
//                 chunk.payload_type
//   own_replies   workers' memory for their replies, chunk.reply_bytes() each, written in the same
//                 pass
//   streams       write own_replies with non-temporal stores, see StreamsResults
//   work          for long rounds; may be null
bool ApplyRound(Chunk& chunk, const simd::Terms& terms, std::uint32_t world_size,
                std::span<std::byte* const> own_replies, bool streams, LongWork* work);

// The same for a reduction in fixed point (sum=fixed) of the gradients of all ranks of the job.
bool ApplyFixed(Chunk& chunk, std::span<const std::byte* const> gradients,
                std::span<std::byte* const> own_replies, bool streams, LongWork* work);

// For rounds that are summed and applied later (apply_iteration). Turns the sum in the chunk's
// accumulator into the gradient for the optimizer: a mean is divided now. Returns the gradient's
// squared norm, an f64 whose bits depend only on the chunk's elements; 0 for keys without an
// optimizer, whose sums are not gradients.
double MakeGradient(Chunk& chunk, std::uint32_t world_size);
// Like ApplyRound, with the sum in the accumulator. norms: MakeGradient was called; the gradient is
// multiplied by `scale` first.
void ApplySummed(Chunk& chunk, std::uint32_t world_size, bool norms, double scale,
                 std::span<std::byte* const> own_replies, bool streams, LongWork* work);

// For jobs that span racks: counts the memory that ApplyRound with these terms reads and writes.
void CountMemory(const JobShard& shard, const Chunk& chunk, const simd::Terms& terms,
                 std::size_t own_count);

}  // namespace phub::server::optimize
