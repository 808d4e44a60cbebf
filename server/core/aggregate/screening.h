// Sums that are not finite: whose gradients made them so, counted in the job's metrics, the first
// one kept for the core loop to tell (ShardConfig::screening says what becomes of it).
//
// That a sum is not finite falls out of summing (common/simd); only then is each gradient looked at
// again, while it is still staged. A worker that writes to shared memory meanwhile hides itself at
// most: the sum is told all the same. A sum whose gradients are all finite overflowed; nobody is
// named. Only reductions are screened: whoever assigns an infinity means it. Core loop's thread.
#pragma once

#include "server/core/job_shard.h"

namespace phub::server::aggregate {

// Ranks [chunk.folded_count, end) of a reduction were combined with what was folded before, and the
// result is not finite. REQUIRES: they are still staged.
void NoteNonFinite(JobShard& shard, Chunk& chunk, std::uint32_t end);

}  // namespace phub::server::aggregate
