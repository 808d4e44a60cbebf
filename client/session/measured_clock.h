// A daemon's clock, as a rank measured it with one call.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "common/base/clock.h"

namespace phub::client {

struct MeasuredClock {
  // Identify the daemon's process.
  std::string host;
  std::int64_t started_ns = 0;
  // The daemon's clock minus this process's (CLOCK_MONOTONIC), to within `error`: half of the
  // call's duration, since the daemon read its clock at some time during the call.
  DurationNs offset = 0;
  DurationNs error = 0;

  // `daemon_now`: the daemon's clock during a call from `begin` to `end`.
  static MeasuredClock Of(std::string host, std::int64_t started_ns, TimeNs daemon_now,
                          TimeNs begin, TimeNs end) {
    const TimeNs middle = begin + (end - begin) / 2;
    return {std::move(host), started_ns, daemon_now - middle, (end - begin + 1) / 2};
  }
};

}  // namespace phub::client
