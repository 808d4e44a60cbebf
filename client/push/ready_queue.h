// Chooses the next key to send on a lane: by priority class, then by priority. Among equals, keys
// of iterations come in the order in which they were added, then collective keys in the order in
// which their rounds were started. There is a heap for each class and SendWay, since each way waits
// for another resource. Within a key, chunks are sent in order of offset. The heaps are
// preallocated with the lane's keys; nothing here allocates.
//
// While a lower class can send, the lowest gets one of 20 chunks: it always proceeds. If a lane has
// keys of a higher class, gradients of lower ones hold at most YieldingSlotsMax() of its slots, so
// a gradient of the higher class finds a free one and waits for few others on the way. A daemon
// that supports this folds what such a lane holds, as it does with a full one (lane_room.h there);
// otherwise rounds would wait for each other.
#pragma once

#include <cstdint>

#include "client/lane.h"

namespace phub::client {

// Queues a lane key for its way. Does nothing if it is already queued.
void QueueLaneKey(Lane& lane, std::uint32_t lane_key);
// Finds the first lane key that can be sent now (a free slot, or a pull). False if no key can.
[[nodiscard]] bool FirstLaneKey(const Lane& lane, std::uint32_t& lane_key);
// Call before a chunk of the lane key that FirstLaneKey() returned is sent.
void NoteChoice(Lane& lane, std::uint32_t lane_key);
// Removes the lane key that FirstLaneKey() returned.
void PopLaneKey(Lane& lane, std::uint32_t lane_key);
// Removes any lane key, in linear time. For withdrawals.
void RemoveLaneKey(Lane& lane, std::uint32_t lane_key);

}  // namespace phub::client
