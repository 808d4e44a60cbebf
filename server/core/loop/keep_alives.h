// Keep-alives of a core loop: shows workers and other racks' core loops that the loop is alive, and
// measures how long each of them has been silent. Control reads the result
// (Connection::silence_meter) and judges it.
//
// Owned by CoreLoop::Impl; loop's thread. Nothing allocates after construction.
#pragma once

#include <cstdint>

#include "common/transport/silence_meter.h"
#include "server/core/long_work.h"
#include "server/core/loop/context.h"

namespace phub::server {

class KeepAlives final : public LongWork {
 public:
  // liveness_timeout 0: does nothing.
  KeepAlives(LoopContext& loop, DurationNs liveness_timeout)
      : loop_(loop), timer_(liveness_timeout) {}

  // Call it in each run after the transports were polled.
  void EndRun() {
    if (timer_.IsDue(loop_.now)) LookAtLanes();
  }
  // When the next look is due; the maximum if never.
  TimeNs next() const { return timer_.next(); }

 private:
  void LookAtLanes();
  void OnLongWork() override;

  LoopContext& loop_;
  transport::LookTimer timer_;
};

}  // namespace phub::server
