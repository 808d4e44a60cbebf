// The policy of most rounds: once every rank has pushed and it is the job's turn, one pass sums
// what is staged, in rank order, runs the optimizer and writes every copy of the next version.
// Broadcasts and loads of saved state, which are no sums, go the same way.
#pragma once

#include "server/core/rounds/round_stages.h"

namespace phub::server::plain {

// REQUIRES: every rank has arrived.
Made Finish(RoundStages& stages, JobShard& shard, Chunk& chunk);

}  // namespace phub::server::plain
