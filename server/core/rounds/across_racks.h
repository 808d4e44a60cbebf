// The policy of jobs that span racks: a round that every rank of this rack has pushed is not over.
// Its sum goes through the exchange stage (exchange/exchange.h), which adds the peer racks' sums on
// the way to the chunk's home. There the optimizer runs, once for all racks; elsewhere the next
// version comes from the home.
//
// The own sum moves to the accumulator and the slots are free at once, so that workers never wait
// for another rack.
#pragma once

#include "server/core/rounds/round_stages.h"

namespace phub::server::across_racks {

// REQUIRES: every rank has arrived.
Made Finish(RoundStages& stages, JobShard& shard, Chunk& chunk);

// What a peer rack sent, and what it makes of a round. `chunk`: null if there is none.
struct Outcome {
  Chunk* chunk = nullptr;
  Made made = Made::kNothing;
};
Outcome OnMessage(RoundStages& stages, JobShard& shard, RackIndex rack,
                  const transport::ReceivedMessage& message);

}  // namespace phub::server::across_racks
