// Keep-alives of a core loop: shows workers and other racks' core loops that the loop is alive, and
// measures how long each of them has been silent. Control reads the result
// (Connection::silence_meter) and judges it.
//
// Owned by CoreLoop::Impl; loop's thread. Nothing allocates after construction.
#pragma once

#include <cstdint>

#include "common/transport/silence_meter.h"
#include "server/core/loop/context.h"

namespace phub::server {

class KeepAlives {
 public:
  // liveness_timeout 0: does nothing.
  KeepAlives(LoopContext& loop, DurationNs liveness_timeout)
      : loop_(loop), timer_(liveness_timeout) {}

  // Call it in each run after the transports were polled.
  void EndRun() {
    if (timer_.IsDue(loop_.now)) LookAtLanes();
  }
  // Call it after work on that many bytes. Long work within one run must not make this loop look
  // dead.
  void NoteWork(std::uint64_t bytes) {
    worked_bytes_ += bytes;
    if (worked_bytes_ >= kBytesPerCheck) SendDuringWork();
  }
  // When the next look is due; the maximum if never.
  TimeNs next() const { return timer_.next(); }

 private:
  // Takes several milliseconds. The clock is read once for as much work.
  static constexpr std::uint64_t kBytesPerCheck = 32 << 20;

  void LookAtLanes();
  void SendDuringWork();

  LoopContext& loop_;
  transport::LookTimer timer_;
  std::uint64_t worked_bytes_ = 0;
};

}  // namespace phub::server
