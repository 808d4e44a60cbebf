// How often a polling thread yields before it sleeps. A yield is cheaper than a wakeup, but pays
// off only if work arrives soon. The limit therefore adapts: it doubles after a short sleep, up to
// a maximum, and halves after a long one. The kernel's halt polling for guests does the same
// (Documentation/virt/kvm/halt-polling.rst). Pure; one thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/clock.h"

namespace phub {

class IdleYields {
 public:
  // A few times the cost of a wakeup; halving or doubling it made no difference (bench/NOTES.md).
  static constexpr DurationNs kShortSleep = 100 * kMicrosecond;

  // `most`: the maximum and also the initial limit; at least 1.
  explicit IdleYields(std::uint32_t most) : most_(most), allowed_(most) {}

  // Call when a poll found no work. True: yield and poll again. False: sleep.
  bool Take() { return ++taken_ <= allowed_; }
  // Call when a poll found work.
  void Worked() { taken_ = 0; }
  // Call when another thread needs the core: the next Take() returns false.
  void Forgo() { taken_ = allowed_; }
  // Call after a sleep, with its duration.
  void Slept(DurationNs duration) {
    taken_ = 0;
    allowed_ = duration < kShortSleep ? std::min(allowed_ * 2, most_) : std::max(allowed_ / 2, 1u);
  }

 private:
  const std::uint32_t most_;
  std::uint32_t allowed_;
  std::uint32_t taken_ = 0;  // consecutive
};

}  // namespace phub
