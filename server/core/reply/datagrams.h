// New versions as datagrams, for the ranks of rounds that an aggregator has summed: one for each
// block, which the aggregator forwards to all ranks. So the daemon sends a version once, for any
// number of ranks. A rank that misses a block asks for it (wire::MessageKind::kMissing). A version
// stays as it is until every rank has it, because the next one needs a gradient of every rank.
// Core loop's thread; nothing allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "server/core/job_shard.h"
#include "server/metrics/counters.h"

namespace phub::server::reply {

// To all ranks. REQUIRES: a stream is open.
void SendDatagrams(JobShard& shard, const Chunk& chunk, CoreCounters& counters);
// To one rank: a bit for each block; empty: all blocks. Returns the bytes that were sent.
// REQUIRES: a stream is open, and `missing` is empty or has a bit for each datagram.
std::uint64_t SendDatagramsAgain(JobShard& shard, const Chunk& chunk, Rank rank,
                                 std::span<const std::byte> missing, CoreCounters& counters);

}  // namespace phub::server::reply
