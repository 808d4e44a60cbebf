// Finds the ranks whose gradients made a sum not finite. Counts such sums and gradients in the
// job's metrics, and keeps the first sum for the core loop to report (see ShardConfig::screening).
//
// Summing detects a sum that is not finite (common/simd). Only then each gradient is checked, while
// it is still staged. A worker that overwrites shared memory meanwhile can avoid being named, but
// the sum is still reported. If all gradients are finite, the sum has overflowed and no rank is
// named. Only reductions are screened, because an assigned infinity is intended. Core loop's
// thread.
#pragma once

#include "server/core/job_shard.h"

namespace phub::server::aggregate {

// Call when ranks [chunk.folded_count, end) of a reduction were added to the accumulator and the
// result is not finite. REQUIRES: they are still staged. Sums in fixed point are computed once for
// all ranks, so the ranks that were copied before are examined too.
void NoteNonFinite(JobShard& shard, Chunk& chunk, std::uint32_t end);
// The round's sum is not finite, and `ranks` gradients were not, the first that of `first`. No
// ranks: the sum has overflowed.
void NoteNonFiniteSum(JobShard& shard, Chunk& chunk, Rank first, std::uint32_t ranks);

}  // namespace phub::server::aggregate
