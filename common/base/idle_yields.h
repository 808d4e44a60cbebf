// How often a thread that polls yields before it sleeps. A yield costs less than waking up does,
// but is worth it only while something is about to come. So a thread whose sleeps are short yields
// twice as often the next time, up to a limit, and one whose sleeps are long half as often: what
// the kernel's halt polling does for guests (Documentation/virt/kvm/halt-polling.rst).
// Pure; one thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/clock.h"

namespace phub {

class IdleYields {
 public:
  // A few times what waking up costs; half and twice of it made no difference (bench/NOTES.md).
  static constexpr DurationNs kShortSleep = 100 * kMicrosecond;

  // At least 1. It starts with as many.
  explicit IdleYields(std::uint32_t most) : most_(most), allowed_(most) {}

  // There was nothing to do, again: true to yield and look once more, false to sleep.
  bool Take() { return ++taken_ <= allowed_; }
  // There was something to do.
  void Worked() { taken_ = 0; }
  // Whoever has the core needs it: sleep next.
  void Forgo() { taken_ = allowed_; }
  // Until something came, or the time was up.
  void Slept(DurationNs duration) {
    taken_ = 0;
    allowed_ = duration < kShortSleep ? std::min(allowed_ * 2, most_) : std::max(allowed_ / 2, 1u);
  }

 private:
  const std::uint32_t most_;
  std::uint32_t allowed_;
  std::uint32_t taken_ = 0;  // in a row
};

}  // namespace phub
