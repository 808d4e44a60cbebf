// Which key is sent next on a lane: a heap by (priority, order of addition). Within a key, chunks
// go in order of offset. Preallocated with the lane's keys; nothing here allocates.
#pragma once

#include <cstdint>
#include <span>

#include "client/lane.h"

namespace phub::client {

// Queues a lane key; nothing happens if it is queued already.
void QueueLaneKey(Lane& lane, std::span<const EngineKey* const> keys, std::uint32_t lane_key);
// The lane key to send from. REQUIRES: !lane.ready.empty()
inline std::uint32_t FirstLaneKey(const Lane& lane) { return lane.ready.front(); }
void PopLaneKey(Lane& lane, std::span<const EngineKey* const> keys);
// Takes a lane key out, wherever it is. For withdrawals: linear.
void RemoveLaneKey(Lane& lane, std::span<const EngineKey* const> keys, std::uint32_t lane_key);

}  // namespace phub::client
