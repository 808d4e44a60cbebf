// The policy of jobs with apply=iteration: rounds are summed and wait in their accumulators, and
// the workers decide what becomes of them. A rank is told of every chunk that is summed; once it
// knows of all, on every core loop and daemon, it decides, and says so on every lane. All ranks
// know the same, so they decide the same; a core loop applies the decision when all ranks have sent
// it. The reasons are in docs/internals/jobs.md.
//
// Invariants: a chunk that is summed has every rank's gradient in its accumulator, and is counted
// in ShardIteration::summed_count, or, from the last decision to its own update, in applying_count.
//
// Broadcasts and loads of such a job are plain rounds.
#pragma once

#include "server/core/rounds/round_stages.h"

namespace phub::server::whole_iteration {

// REQUIRES: every rank has arrived, and the operation is kReduce. Sums the round; or, if it is
// summed and decided, makes the next version. If the iteration is skipped everything that the chunk
// has keeps its bits, and is called the next version.
Made Finish(RoundStages& stages, JobShard& shard, Chunk& chunk);
// A rank's decision about the iteration that waits, which ingest has accepted. After the last
// rank's the chunks take turns with other jobs' work.
void Decide(RoundStages& stages, JobShard& shard, Rank rank, const wire::MessageHeader& header);

}  // namespace phub::server::whole_iteration
