// Rounds that need a rank that has left the job in order: they can never be whole, so each is a
// fault of the job, found at the earliest of three moments. Loop's thread; nothing allocates.
#pragma once

#include "server/core/job_shard.h"
#include "server/core/loop/outbox.h"

namespace phub::server::departed {

// The rank leaves. A fault if a round has begun that still needs it.
void OnRankLeft(Outbox& outbox, JobShard& shard, Rank rank);
// `rank` has pushed into a round that is not whole. True, and a fault, if the round needs a rank
// that has left.
bool FaultIfNeeded(Outbox& outbox, JobShard& shard, const Chunk& chunk, Rank rank);
// apply=iteration: the round is summed, and every rank has to decide about it. True, and a fault,
// if one has left.
bool FaultIfUndecidable(Outbox& outbox, JobShard& shard, const Chunk& chunk);

}  // namespace phub::server::departed
