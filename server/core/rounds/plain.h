// The policy of most rounds. When every rank has pushed and it is the job's turn, one pass sums the
// staged gradients in rank order, runs the optimizer and writes every copy of the next version.
// Broadcasts and loads of checkpoints also use it.
#pragma once

#include "server/core/rounds/round_stages.h"

namespace phub::server::plain {

// If a reply overwrites a gradient, screening must look at the gradients before the replies are
// written, or it would find the result in place of the gradient. REQUIRES: OwnReplies was called.
bool ScreensBeforeReplies(const RoundStages& stages, const JobShard& shard, const Chunk& chunk);

// Sums and updates, and writes the replies to `own`. REQUIRES: `own` is the last OwnReplies.
Made Apply(RoundStages& stages, JobShard& shard, Chunk& chunk, std::span<std::byte* const> own);

// REQUIRES: every rank has arrived.
Made Finish(RoundStages& stages, JobShard& shard, Chunk& chunk);

}  // namespace phub::server::plain
