// Third stage: turns the terms of a whole round into the chunk's next version, in one pass that
// sums, updates, and writes every copy of it. Core loop's thread; nothing allocates.
#pragma once

#include <span>

#include "server/job_shard.h"

namespace phub::server::optimize {

// Makes version chunk.applied + 1; whoever calls moves chunk.applied on. terms: of kReduce in rank
// order; of kAssign the one payload that wins, in chunk.payload_type. own_replies: memory of
// workers who want their reply there, chunk.reply_bytes() each, written in the same pass; past the
// caches, if `streams`: for jobs whose results do not stay there until somebody reads them.
void ApplyRound(Chunk& chunk, const simd::Terms& terms, std::uint32_t world_size,
                std::span<std::byte* const> own_replies, bool streams);

}  // namespace phub::server::optimize
