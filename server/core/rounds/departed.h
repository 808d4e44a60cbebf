// A round that needs a rank that has left the job normally can never complete, so it is a fault of
// the job. Each function detects it at another moment. Loop's thread; nothing allocates.
#pragma once

#include "server/core/job_shard.h"
#include "server/core/loop/outbox.h"

namespace phub::server::departed {

// Call when the rank leaves. Reports a fault if a round has begun that still needs it.
void OnRankLeft(Outbox& outbox, JobShard& shard, Rank rank);
// Call when `rank` has pushed into a round that is not whole. Reports a fault and returns true if
// the round needs a rank that has left.
bool FaultIfNeeded(Outbox& outbox, JobShard& shard, const Chunk& chunk, Rank rank);
// Call when a round of apply=iteration is summed, so that every rank must decide about it. Reports
// a fault and returns true if a rank has left.
bool FaultIfUndecidable(Outbox& outbox, JobShard& shard, const Chunk& chunk);

}  // namespace phub::server::departed
