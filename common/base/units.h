// Parses and formats durations and sizes. Pure functions; any thread.
// - Exact text ("1500ms", "8GiB") parses back to the same value; for settings and dumps.
// - Human text ("1.5 s", "97.5 MiB") is rounded; for tables and messages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/clock.h"

namespace phub {

inline constexpr std::uint64_t kKibibyte = 1ull << 10;
inline constexpr std::uint64_t kMebibyte = 1ull << 20;
inline constexpr std::uint64_t kGibibyte = 1ull << 30;
inline constexpr std::uint64_t kTebibyte = 1ull << 40;

// "2s", "1.5s", "250ms", "10us", "40ns", "5m", "1h"; a space before the unit is allowed. The unit
// is required. nullopt if the text is not a duration, is not a whole number of nanoseconds, or
// exceeds 63 bits.
std::optional<DurationNs> ParseDuration(std::string_view text);
// "8GiB", "64KiB", "1.5MiB", "4096" (bytes), "4096B"; also KB, MB, GB, TB (powers of 1000).
// nullopt if the text is not a size, is not a whole number of bytes, or exceeds 63 bits.
std::optional<std::uint64_t> ParseBytes(std::string_view text);

// Uses the largest unit that gives an integer: "2s", "1500ms", "64KiB", "100".
std::string ExactDuration(DurationNs duration);
std::string ExactBytes(std::uint64_t bytes);

// Three significant digits: "1.3 s", "250 ms", "2 h 5 min", "97.5 MiB", "512 B".
std::string HumanDuration(DurationNs duration);
std::string HumanBytes(std::uint64_t bytes);

}  // namespace phub
