// The policy of jobs that span racks. When every rank of this rack has pushed, the sum goes through
// the exchange stage (exchange/exchange.h), which adds the peer racks' sums on the path to the
// chunk's home. The home runs the optimizer once for all racks; the other racks get the next
// version from the home.
//
// The own sum moves to the accumulator at once, and its slots are credited, so that workers' slots
// do not wait for another rack.
#pragma once

#include "server/core/rounds/round_stages.h"

namespace phub::server::across_racks {

// REQUIRES: every rank has arrived.
Made Finish(RoundStages& stages, JobShard& shard, Chunk& chunk);

// The effect of a message from a peer rack on a round. `chunk` is null if the message has none.
struct Outcome {
  Chunk* chunk = nullptr;
  Made made = Made::kNothing;
};
Outcome OnMessage(RoundStages& stages, JobShard& shard, RackIndex rack,
                  const transport::ReceivedMessage& message);

}  // namespace phub::server::across_racks
