// The receiving side of a lane: checks replies and credits against the chunks in flight. The
// daemon's messages are not trusted: a violation is returned, not asserted.
#pragma once

#include <span>

#include "client/lane.h"
#include "common/wire/message.h"

namespace phub::client {

struct Received {
  LaneFault fault = LaneFault::kNone;  // not kNone: nothing was changed
  bool summed = false;                 // first report that a chunk of the iteration is summed
  EngineKey* completed = nullptr;      // the key whose round completed with this reply
};

// Handles one message of an open lane. The payload of kParameters is already in its place.
Received Receive(const EngineConfig& config, Lane& lane, std::span<EngineKey* const> keys,
                 const wire::MessageHeader& header, EngineCounters& counters);

// The parameters of a chunk's round are in their place, however they came: the chunk is idle again.
// REQUIRES: it is kSent. Returns the key whose round is complete now, or null.
EngineKey* CompleteChunk(Lane& lane, std::span<EngineKey* const> keys, std::uint32_t index);

}  // namespace phub::client
