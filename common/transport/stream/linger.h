// When waiting pays: a long flow over a link that is slower than this host comes in pieces, and a
// wake-up for each costs more than the piece. So whoever has nothing left to do leaves the flow
// alone for as long as it takes to bring a good deal more, and moves that at once.
//
// Only inside a flow: since there was last nothing more to come, several times as much came as is
// waited for, and a lane that just brought some of it has a payload still to complete, so that more
// is on its way. A message that is awaited alone, and a tensor of up to that size, are never waited
// for longer than they take; nor is anything because of a lane that stopped in the middle of a
// payload. What comes on other lanes beside a flow that goes on may wait with it.
// Pure; one thread.
#pragma once

#include <cstddef>

#include "common/base/clock.h"

namespace phub::transport {

// What is waited for where a lane has `window_bytes` under way: a quarter, so that an end that
// stays away, and then the other one too, leaves half of them to keep the link busy.
constexpr std::size_t LingerBytes(std::size_t window_bytes) { return window_bytes / 4; }

class Linger {
 public:
  // `bytes`: what is waited for; well below what may be under way on a lane, or the peer would run
  // out of room meanwhile. 0: never.
  explicit Linger(std::size_t bytes) : bytes_(bytes) {}

  void Received(std::size_t bytes, TimeNs now);
  // The owner has nothing to do. `flows`: some lane brought bytes since the last call, and is
  // inside a payload. How long the owner may stay away; 0: wait for the next piece as usual. Not
  // twice unless something came in between, so a flow that stops is not polled.
  DurationNs Take(TimeNs now, bool flows);

 private:
  const std::size_t bytes_;
  std::size_t flow_bytes_ = 0;
  TimeNs flow_since_ = 0;
  bool came_ = false;  // something, since Take() was last asked
};

}  // namespace phub::transport
