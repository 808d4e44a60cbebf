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

}  // namespace phub::client
