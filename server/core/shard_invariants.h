// Checks the invariants of a shard, which hold between any two messages.
// docs/internals/invariants.md numbers them (S1, L1, ...) and names a bug that each one finds.
//
// Checked builds check the lane and the chunk that a message touched, after the message. The
// simulation checks whole shards after every run. A violated invariant aborts. Loop's thread;
// nothing allocates.
#pragma once

#include "server/core/job_shard.h"

namespace phub::server {

// Checks the chunk's round: the ranks that have arrived, and their gradients and replies.
void CheckChunk(const JobShard& shard, const Chunk& chunk);
// Checks the rank's lane: its slots, its window, its credits.
void CheckLane(const JobShard& shard, Rank rank);
// Checks all lanes and chunks, and the shard's counts.
void CheckShard(const JobShard& shard);

}  // namespace phub::server
