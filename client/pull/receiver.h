// The receiving side of a lane: replies and credits, each checked against what is under way. What
// arrives was sent by the daemon and is never trusted: a breach is returned, not asserted.
#pragma once

#include <span>

#include "client/lane.h"
#include "common/wire/message.h"

namespace phub::client {

struct Received {
  LaneFault fault = LaneFault::kNone;  // then nothing was changed
  bool summed = false;                 // a chunk of the iteration is summed now, and was not before
  EngineKey* completed = nullptr;      // the key whose round's last reply this was
};

// Takes one message of an open lane. The payload of kParameters lies in its place already.
Received Receive(const EngineConfig& config, Lane& lane, std::span<EngineKey* const> keys,
                 const wire::MessageHeader& header, EngineCounters& counters);

}  // namespace phub::client
