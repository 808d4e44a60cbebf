// Which priority classes have rounds in progress with other racks, and whether they move. Lower
// classes have only their share meanwhile (peer_window.h): the next message of such a round may be
// ready at any moment, here or at a rack that sends to the same rack as this one, and would wait
// behind theirs.
//
// A class is busy while
//   - rounds are in progress, and had kBusyBytes or more at some time since none was. Smaller ones
//     are over before a message of a lower class is sent, and may follow each other without end.
//   - and one of its messages was posted, sent or received a short time ago: at most eight times
//     the longest time between two messages, which fades by an eighth at each.
//
// No deadlock. A round of a higher class may wait for a rank, and this rank for a round of a lower
// class. Then no message of the higher class moves. So after kBusyTimeMax at most it is busy no
// longer, and lower classes have the whole link.
//
// Core loop's thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "common/base/clock.h"
#include "common/base/priority_levels.h"

namespace phub::server::exchange {

class ClassActivity {
 public:
  static constexpr std::uint64_t kBusyBytes = 256 * 1024;  // two chunks of the usual size
  static constexpr DurationNs kBusyTimeMin = 200 * kMicrosecond;
  static constexpr DurationNs kBusyTimeMax = 10 * kMillisecond;

  // A chunk's round begins with its first sum here, and ends when its result goes on from here.
  void BeginRound(std::size_t level, std::uint64_t bytes, TimeNs now) {
    Class& begun = classes_[level];
    begun.bytes += bytes;
    begun.is_large |= begun.bytes >= kBusyBytes;
    begun.moved_at = now;
  }
  void EndRound(std::size_t level, std::uint64_t bytes) {
    Class& ended = classes_[level];
    ended.bytes -= bytes;
    ended.is_large &= ended.bytes > 0;
  }

  // A message was posted, sent or received.
  void NoteMoved(std::size_t level, TimeNs now) {
    Class& moved = classes_[level];
    const DurationNs gap = now - moved.moved_at;
    if (moved.bytes > 0 && gap > 0)
      moved.gap = std::min(std::max(moved.gap - moved.gap / 8, gap), kBusyTimeMax);
    moved.moved_at = now;
  }

  bool IsBusy(std::size_t level, TimeNs now) const {
    return classes_[level].is_large && now < BusyUntil(level);
  }
  bool IsHigherBusy(std::size_t level, TimeNs now) const {
    while (++level < kPriorityLevels)
      if (IsBusy(level, now)) return true;
    return false;
  }
  // If nothing moves until then.
  TimeNs BusyUntil(std::size_t level) const {
    const Class& moved = classes_[level];
    return moved.moved_at + std::clamp(8 * moved.gap, kBusyTimeMin, kBusyTimeMax);
  }
  std::uint64_t bytes(std::size_t level) const { return classes_[level].bytes; }

 private:
  struct Class {
    std::uint64_t bytes = 0;  // of its rounds in progress
    bool is_large = false;
    TimeNs moved_at = 0;
    DurationNs gap = 0;
  };
  std::array<Class, kPriorityLevels> classes_;
};

}  // namespace phub::server::exchange
