// Leaves a running job at every daemon of the rack.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "client/session/rack_calls.h"

namespace phub::client {

// The lanes that are open. Any thread, after SetCount().
class OpenLanes {
 public:
  void SetCount(std::uint32_t count) { open_ = std::vector<std::atomic<bool>>(count); }
  void Opened(std::uint32_t lane) { open_[lane] = true; }
  void Closed(std::uint32_t lane) { open_[lane] = false; }
  bool HasAny(const DaemonLink& link) const {
    const auto first = open_.begin() + link.first_lane;
    return std::any_of(first, first + link.lane_count(),
                       [](const std::atomic<bool>& open) { return open.load(); });
  }

 private:
  std::vector<std::atomic<bool>> open_;  // [lane]
};

// The daemons close the lanes of a rank that has left, so nothing judges lanes that are lost
// meanwhile. They say instead whether a daemon that control cannot reach is alive: the call is
// repeated as long as one is open, for two minutes at most. If the lanes close meanwhile, the
// daemon has died, or it has executed the call and its answer was lost: the call is repeated for
// half a minute. Without lanes from the beginning it is repeated for liveness_timeout. A daemon
// that does not know the rank when the call is repeated has executed it before, or was restarted:
// this rank has no seat there, which is what Leave leads to. Blocks. Returns the first error, with
// the daemon's name.
Status LeaveRunningRack(RackCalls& calls, const OpenLanes& lanes, const Clock& clock);

}  // namespace phub::client
