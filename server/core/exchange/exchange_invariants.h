// What is true of a job's exchange with peer racks between any two messages, checked.
// docs/internals/invariants.md numbers the invariants (E1, ...). Loop's thread; nothing allocates.
#pragma once

#include "server/core/exchange/shard_exchange.h"

namespace phub::server::exchange {

// One chunk's exchange, and its places in the landing tables. REQUIRES: shard.exchange.
void CheckExchange(const JobShard& shard, ChunkIndex chunk);
// All chunks, and the messages that wait for room in a lane.
void CheckExchanges(const JobShard& shard);

}  // namespace phub::server::exchange
