// Which key is sent next on a lane: a heap by (priority, order of addition) for every way of
// sending, since each waits for something else. Within a key, chunks go in order of offset.
// Preallocated with the lane's keys; nothing here allocates.
#pragma once

#include <cstdint>
#include <span>

#include "client/lane.h"

namespace phub::client {

// Queues a lane key for its way; nothing happens if it is queued already.
void QueueLaneKey(Lane& lane, std::span<const EngineKey* const> keys, std::uint32_t lane_key);
// The lane key to send from: the first among those whose way is open (free slots, pulls). False if
// there is none.
[[nodiscard]] bool FirstLaneKey(const Lane& lane, std::span<const EngineKey* const> keys,
                                std::uint32_t& lane_key);
// Takes out a lane key that FirstLaneKey found.
void PopLaneKey(Lane& lane, std::span<const EngineKey* const> keys, std::uint32_t lane_key);
// Takes a lane key out, wherever it is. For withdrawals: linear.
void RemoveLaneKey(Lane& lane, std::span<const EngineKey* const> keys, std::uint32_t lane_key);

}  // namespace phub::client
