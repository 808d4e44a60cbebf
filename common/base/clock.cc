#include "common/base/clock.h"

#include <time.h>

namespace phub {

TimeNs SystemClock::Now() const {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<TimeNs>(now.tv_sec) * kSecond + now.tv_nsec;
}

}  // namespace phub
