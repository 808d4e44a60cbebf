// The policy of jobs with sum=fixed. As the policy kPlain, but sums are computed in fixed point: a
// function of the gradients that does not depend on their order, and that an aggregator on the way
// computes with the same bits (common/aggregation/fixed_point.h).
//
// Rounds without such a sum are plain: integers, broadcasts, loads, movements of bytes.
#pragma once

#include "server/core/rounds/round_stages.h"

namespace phub::server::fixed_sums {

// REQUIRES: every rank has arrived.
Made Finish(RoundStages& stages, JobShard& shard, Chunk& chunk);

}  // namespace phub::server::fixed_sums
