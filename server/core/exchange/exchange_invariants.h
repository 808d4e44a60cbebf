// Checks the invariants of a job's exchange with peer racks, which hold between any two messages.
// docs/internals/invariants.md numbers them (E1, ...). Loop's thread; nothing allocates.
#pragma once

#include "server/core/exchange/shard_exchange.h"

namespace phub::server::exchange {

// Checks one chunk's exchange and its slots in the landing tables. Chunks without one are right.
void CheckExchange(const JobShard& shard, const Chunk& chunk);
// Checks all chunks, and the messages that wait for room in a lane. REQUIRES: shard.exchange.
void CheckExchanges(const JobShard& shard);

}  // namespace phub::server::exchange
