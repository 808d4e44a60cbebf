// Adds the connections that the data port refused before authentication to control's counters,
// which metrics and `phubctl stats` report. Runs on the listener's thread.
#pragma once

#include <array>

#include "common/transport/pending_lanes.h"
#include "server/control/counters.h"
#include "server/control/ports/control_thread.h"

namespace phub::server {

class DataPortReport {
 public:
  // Both must outlive the report.
  DataPortReport(ControlThread& thread, const transport::LaneListenerCounters& port)
      : thread_(thread), port_(port) {}

  // Takes control's lock only if there were refusals since the last call.
  void Update();

 private:
  static constexpr std::size_t kCount = 5;
  ControlThread& thread_;
  const transport::LaneListenerCounters& port_;
  std::array<std::uint64_t, kCount> reported_{};
};

}  // namespace phub::server
