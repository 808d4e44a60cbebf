// What is true of a shard between any two messages, checked. docs/internals/invariants.md numbers
// the invariants (S1, L1, ...) and names a bug that each one finds.
//
// Checked builds check the lane and the chunk that a message touched, after the message; the
// simulation checks whole shards after every run. A broken invariant aborts. Loop's thread; nothing
// allocates.
#pragma once

#include "server/core/job_shard.h"

namespace phub::server {

// The chunk's round: who has arrived, where their gradients lie, what it waits for.
void CheckChunk(const JobShard& shard, const Chunk& chunk);
// The rank's lane: its slots, its window, its credits.
void CheckLane(const JobShard& shard, Rank rank);
// All of the above, and the counts that the shard keeps of them.
void CheckShard(const JobShard& shard);

}  // namespace phub::server
