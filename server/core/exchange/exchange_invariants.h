// Checks the invariants of a job's exchange with peer racks, which hold between any two messages.
// docs/internals/invariants.md numbers them (E1, ...). Loop's thread; nothing allocates.
#pragma once

#include "server/core/exchange/shard_exchange.h"

namespace phub::server::exchange {

// Checks one chunk's exchange and its slots in the landing tables. REQUIRES: shard.exchange.
void CheckExchange(const JobShard& shard, ChunkIndex chunk);
// Checks all chunks, and the messages that wait for room in a lane.
void CheckExchanges(const JobShard& shard);

}  // namespace phub::server::exchange
