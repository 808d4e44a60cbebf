// The policy of most rounds. When every rank has pushed and it is the job's turn, one pass sums the
// staged gradients in rank order, runs the optimizer and writes every copy of the next version.
// Broadcasts and loads of checkpoints also use it.
#pragma once

#include "server/core/rounds/round_stages.h"

namespace phub::server::plain {

// REQUIRES: every rank has arrived.
Made Finish(RoundStages& stages, JobShard& shard, Chunk& chunk);

}  // namespace phub::server::plain
