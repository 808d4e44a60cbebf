// Pauses between attempts: growing, so that a busy peer is not flooded, and random, since an outage
// hits all ranks at once. One thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/clock.h"
#include "common/base/random.h"

namespace phub {

// Uniform from half of the pause to all of it.
inline DurationNs Jittered(DurationNs pause, Random& random) {
  const DurationNs half = pause / 2;
  if (half == 0) return pause;
  return half + static_cast<DurationNs>(random.Next() % static_cast<std::uint64_t>(pause - half));
}

class Backoff {
 public:
  DurationNs Next(Random& random) {
    const DurationNs pause = Jittered(next_, random);
    next_ = std::min(2 * next_, kLongest);
    return pause;
  }
  void Reset() { next_ = kFirst; }

 private:
  static constexpr DurationNs kFirst = 50 * kMillisecond;
  static constexpr DurationNs kLongest = kSecond;
  DurationNs next_ = kFirst;
};

}  // namespace phub
