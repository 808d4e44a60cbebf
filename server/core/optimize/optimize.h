// Third stage: turns the terms of a whole round into the chunk's next version, in one pass that
// sums, updates, and writes every copy of it. Core loop's thread; nothing allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "server/core/job_shard.h"

namespace phub::server::optimize {

// Whether results go past the caches: every rank has them in memory of its own, and they are more
// than caches hold, so that they are gone from there by the time that somebody reads them.
bool StreamsResults(const JobShard& shard, std::size_t own_count);

// Makes version chunk.applied + 1; whoever calls moves chunk.applied on. terms: of kReduce in rank
// order; of kAssign the one payload that wins, in chunk.payload_type. own_replies: memory of
// workers who want their reply there, chunk.reply_bytes() each, written in the same pass; past the
// caches, if `streams`: for jobs whose results do not stay there until somebody reads them. True if
// it is a reduction, and its result (in the accumulation type) is not finite.
bool ApplyRound(Chunk& chunk, const simd::Terms& terms, std::uint32_t world_size,
                std::span<std::byte* const> own_replies, bool streams);

// Rounds that are applied later than summed (apply_iteration). The sum in the chunk's accumulator
// is made the gradient that the optimizer gets, so that its norm can be told: a mean is divided
// now. The squared norm, an f64 whose bits depend on the chunk's elements alone; of keys without an
// optimizer 0, since what they sum is no gradient.
double MakeGradient(Chunk& chunk, std::uint32_t world_size);
// Like ApplyRound with what is in the accumulator. norms: it went through MakeGradient, and is
// multiplied by `scale` first.
void ApplySummed(Chunk& chunk, std::uint32_t world_size, bool norms, double scale,
                 std::span<std::byte* const> own_replies, bool streams);

}  // namespace phub::server::optimize
