// All code reads time through this interface, which lets the simulator use virtual time.
// Integer nanoseconds on a monotonic scale with an arbitrary start; never a double.
#pragma once

#include <cstdint>

namespace phub {

using TimeNs = std::int64_t;      // an instant
using DurationNs = std::int64_t;  // a difference of two instants

inline constexpr DurationNs kMicrosecond = 1'000;
inline constexpr DurationNs kMillisecond = 1'000'000;
inline constexpr DurationNs kSecond = 1'000'000'000;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimeNs Now() const = 0;  // any thread
};

// CLOCK_MONOTONIC. Stateless; any thread.
class SystemClock final : public Clock {
 public:
  TimeNs Now() const override;
};

}  // namespace phub
