// Decides when an idle owner should wait (linger) before it reads again. A long flow over a link
// that is slower than this host arrives in small pieces, and a wake-up for each piece costs more
// than reading it. So the owner waits until a larger amount has arrived, and reads that at once.
//
// It lingers only inside a flow, which means that both are true:
//   - Several times the amount to wait for has arrived since the last pause.
//   - A lane that has received data since the last call is inside a payload, so more will arrive.
// So a single message, or a tensor of up to that amount, is never delayed, and a lane that stops in
// the middle of a payload delays nothing. Messages on other lanes may be delayed by a flow.
// Pure; one thread.
#pragma once

#include <cstddef>

#include "common/base/clock.h"

namespace phub::transport {

// The amount to wait for, if a lane may have `window_bytes` in flight: a quarter. If both ends
// wait, half of the window is left to keep the link busy.
constexpr std::size_t LingerBytes(std::size_t window_bytes) { return window_bytes / 4; }

class Linger {
 public:
  // `bytes`: the amount to wait for. It must be well below the bytes that a lane may have in
  // flight, or the peer must stop sending meanwhile. 0: never linger.
  explicit Linger(std::size_t bytes) : bytes_(bytes) {}

  void Received(std::size_t bytes, TimeNs now);
  // Call it when the owner is idle; returns how long to linger. 0: wait for the next event as
  // usual. `flows`: some lane has received bytes since the last call and is inside a payload.
  // Returns 0 if nothing has arrived since the last call, so a flow that stops is not polled.
  DurationNs Take(TimeNs now, bool flows);

 private:
  const std::size_t bytes_;
  std::size_t flow_bytes_ = 0;
  TimeNs flow_since_ = 0;
  bool came_ = false;  // bytes were received since the last Take()
};

}  // namespace phub::transport
