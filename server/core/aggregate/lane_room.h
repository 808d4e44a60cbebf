// Which slots of a lane are in use, and when a lane is full.
//
// If the job has keys of a higher priority class, workers use at most YieldingSlotsMax() slots of a
// lane for gradients of lower classes, so that those of the higher class find free ones. A lane
// that holds so many is full for chunks of lower classes: its worker sends no more of them until
// the daemon folds some. Core loop's thread.
#pragma once

#include "server/core/job_shard.h"

namespace phub::server::aggregate {

// The chunk's gradient of that rank is in the slot.
void TakeSlot(JobShard& shard, Rank rank, const Chunk& chunk, SlotIndex slot);
void ReturnSlot(JobShard& shard, Rank rank, const Chunk& chunk, SlotIndex slot);

// LaneFull: for some chunks. FullFor: for those of the chunk's class.
bool LaneFull(const JobShard& shard, Rank rank);
bool FullFor(const JobShard& shard, Rank rank, const Chunk& chunk);
// A full lane holds the chunk in one of its slots.
bool HeldByFullLane(const JobShard& shard, const Chunk& chunk);
// The lane is not full any more once the whole rounds that it holds are finished.
bool FreesItself(const JobShard& shard, Rank rank);

// The shard has got or lost chunks of that level. True if lanes may be full that were not.
bool NoteChunkAdded(JobShard& shard, std::size_t level);
void NoteChunkRemoved(JobShard& shard, std::size_t level);

}  // namespace phub::server::aggregate
