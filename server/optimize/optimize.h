// Third stage: turns the terms of a whole round into the chunk's next version, in one pass that
// sums and updates. Core loop's thread; nothing allocates.
#pragma once

#include <span>

#include "server/job_shard.h"

namespace phub::server::optimize {

// Applies the round to chunk.parameters (and optimizer state) and moves chunk.applied on by one.
// `terms` in rank order, chunk.element_count elements each; for kAssign the one payload that wins.
void ApplyRound(Chunk& chunk, std::span<const float* const> terms, std::uint32_t world_size);

}  // namespace phub::server::optimize
