// The policy of jobs with apply=iteration. Rounds are summed and wait in their accumulators for the
// workers' decision. docs/internals/jobs.md explains the reasons.
//   1. The core loop notifies every rank of each summed chunk.
//   2. When a rank knows of all chunks, on every core loop and daemon, it decides and sends the
//      decision on every lane. All ranks have the same data, so they decide the same.
//   3. A core loop applies the decision when all ranks have sent it.
//
// Invariants: a summed chunk has every rank's gradient in its accumulator. It is counted in
// ShardIteration::summed_count, and from the last rank's decision to its update in applying_count.
//
// Broadcasts and loads of such a job are plain rounds, and so are all rounds of collective keys.
#pragma once

#include "server/core/rounds/round_stages.h"

namespace phub::server::whole_iteration {

// Sums the round, or, if it is summed and decided, makes the next version. If the iteration is
// skipped, the chunk's data stay as they are and become the next version. REQUIRES: every rank has
// arrived, and the operation is kReduce.
Made Finish(RoundStages& stages, JobShard& shard, Chunk& chunk);
// Handles a rank's decision about the current iteration, which ingest has accepted. The last rank's
// decision queues the chunks for their update.
void Decide(RoundStages& stages, JobShard& shard, Rank rank, const wire::MessageHeader& header);

}  // namespace phub::server::whole_iteration
