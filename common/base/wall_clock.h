// Wall time: nanoseconds since 1970, for times that outlive the process and its monotonic clock.
#pragma once

#include <chrono>
#include <cstdint>

namespace phub {

using WallTimeNs = std::int64_t;

inline WallTimeNs WallNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace phub
