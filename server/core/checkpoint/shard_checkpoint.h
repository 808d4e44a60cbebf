// Saved state of a shard: copied out at an iteration boundary while rounds go on, or put in place
// by a round of kLoad.
//
// A snapshot has a target per key: a number of reductions. Every chunk is copied when it is exactly
// there: right after the round that brought it there, while it is in cache; before the next round,
// if that comes first; or when the loop has nothing better to do. So all chunks show the same
// iteration, and no round waits for a copy of more than its own chunk. A snapshot that comes too
// late for some chunk is `missed` as a whole. Core loop's thread; nothing allocates.
#pragma once

#include "server/core/job_shard.h"

namespace phub::server::checkpoint {

// True if the snapshot can be taken; false: missed.
bool Begin(JobShard& shard, CheckpointImage& image);
// To be called before a round is applied to the chunk, and after it.
void BeforeRound(JobShard& shard, const Chunk& chunk);
void AfterRound(JobShard& shard, const Chunk& chunk);
// Copies chunks that are at their target, some 256 KiB of them. True if any was.
bool Advance(JobShard& shard);
// The snapshot of this shard is whole.
bool Whole(const JobShard& shard);

// Saved state becomes the chunk's next version, like a round's result; whoever calls moves
// chunk.applied on. REQUIRES: shard.CheckpointIsLoaded(chunk), and this is its home.
void PutInPlace(const JobShard& shard, Chunk& chunk, std::span<std::byte* const> own_replies);
// Of a job that spans racks, away from home: its parameters have come from there.
void CountAsLoaded(const JobShard& shard, Chunk& chunk);

}  // namespace phub::server::checkpoint
