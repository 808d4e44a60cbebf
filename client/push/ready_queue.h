// Chooses the next key to send on a lane: one heap, ordered by (priority, order of addition), for
// every SendWay, since each way waits for another resource. Within a key, chunks are sent in order
// of offset. The heaps are preallocated with the lane's keys; nothing here allocates.
#pragma once

#include <cstdint>

#include "client/lane.h"

namespace phub::client {

// Queues a lane key for its way. Does nothing if it is already queued.
void QueueLaneKey(Lane& lane, std::uint32_t lane_key);
// Finds the first lane key that can be sent now (a free slot, or a pull). False if no key can.
[[nodiscard]] bool FirstLaneKey(const Lane& lane, std::uint32_t& lane_key);
// Removes the lane key that FirstLaneKey() returned.
void PopLaneKey(Lane& lane, std::uint32_t lane_key);
// Removes any lane key, in linear time. For withdrawals.
void RemoveLaneKey(Lane& lane, std::uint32_t lane_key);

}  // namespace phub::client
