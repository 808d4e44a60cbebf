// Numbers of leases that are never reused, also after the aggregator has restarted. Pure.
//
// A number is one more than the time of its grant in sixteenths of a second since 2026, or than the
// last number if that is greater. A grant waits until the clock has reached its number, so numbers
// that were granted always lie in the past, and a restarted aggregator begins after them. 32 bits
// last 8.5 years. If the clock is set back, a number may come again, with another key: packets of
// the first lease then have wrong tags.
#pragma once

#include <cstdint>

namespace phub::aggregator {

class LeaseNumbers {
 public:
  static constexpr std::uint64_t kPerSecond = 16;

  // `unix_ms`: milliseconds since 1970.
  std::uint32_t Next(std::uint64_t unix_ms) {
    const std::uint32_t now = At(unix_ms);
    const bool is_ahead = last_ != 0 && static_cast<std::int32_t>(now - last_) <= 0;
    last_ = (is_ahead ? last_ : now) + 1;  // not `now`: another process may have granted that
    if (last_ == 0) last_ = 1;
    return last_;
  }
  // How long the grant of this number waits.
  static std::uint64_t WaitMs(std::uint32_t number, std::uint64_t unix_ms) {
    const auto ahead = static_cast<std::int32_t>(number - At(unix_ms));
    return ahead <= 0 ? 0 : static_cast<std::uint64_t>(ahead) * 1000 / kPerSecond;
  }

 private:
  static constexpr std::uint64_t kStartMs = 1'767'225'600'000;  // 2026-01-01 UTC

  static std::uint32_t At(std::uint64_t unix_ms) {
    return static_cast<std::uint32_t>((unix_ms - kStartMs) * kPerSecond / 1000);
  }

  std::uint32_t last_ = 0;
};

}  // namespace phub::aggregator
