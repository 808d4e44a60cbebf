// What the data port refused before anybody was known, into control's counters, where metrics and
// `phubctl stats` have it. The listener's thread.
#pragma once

#include <array>

#include "common/transport/pending_lanes.h"
#include "server/control/counters.h"
#include "server/control/ports/control_thread.h"

namespace phub::server {

class DataPortReport {
 public:
  // Both outlive the report.
  DataPortReport(ControlThread& thread, const transport::LaneListenerCounters& port)
      : thread_(thread), port_(port) {}

  // Takes control's lock if anything was refused since.
  void Update();

 private:
  static constexpr std::size_t kCount = 5;
  ControlThread& thread_;
  const transport::LaneListenerCounters& port_;
  std::array<std::uint64_t, kCount> reported_{};
};

}  // namespace phub::server
