// Checkpoints of a shard: a snapshot copies the state at an iteration boundary while rounds
// continue; a round of kLoad puts loaded state in place.
//
// A snapshot has a target for each key: a number of reductions. A chunk is copied while it is
// exactly at its target, at the first of these moments:
//   - right after the round that reached the target, while the chunk is in cache
//   - before the chunk's next round
//   - when Advance() gets to the chunk
// So all chunks have the same iteration, and a round waits at most for the copy of its own chunk.
// If some chunk is past its target when the snapshot begins, the whole snapshot is `missed`. Core
// loop's thread; nothing allocates.
#pragma once

#include "server/core/job_shard.h"

namespace phub::server::checkpoint {

// True if the snapshot can be taken; false: missed.
bool Begin(JobShard& shard, CheckpointImage& image);
// Call before and after a round is applied to the chunk.
void BeforeRound(JobShard& shard, const Chunk& chunk);
void AfterRound(JobShard& shard, const Chunk& chunk);
// Visits the next chunks and copies those at their target, about 256 KiB. False if no chunk was
// left to visit.
bool Advance(JobShard& shard);
// The snapshot of this shard is complete.
bool Whole(const JobShard& shard);

// Writes the loaded state as the chunk's next version, like the result of a round. The caller
// increments chunk.applied. REQUIRES: shard.CheckpointIsLoaded(chunk), and chunk.IsSaved().
void PutInPlace(const JobShard& shard, Chunk& chunk, std::span<std::byte* const> own_replies);
// For a chunk of a job that spans racks, when its home has sent the loaded parameters: sets the
// number of reductions.
void CountAsLoaded(const JobShard& shard, Chunk& chunk);

}  // namespace phub::server::checkpoint
