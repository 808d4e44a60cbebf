// Priority classes of keys as numbers, for daemons and workers: 0 is the lowest (data), then
// pipeline and tensor. client/include/phub/types.h says what they are for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace phub {

inline constexpr std::size_t kPriorityLevels = 3;

// At either end of a lane, one of kOvertakesMax + 1 chunks is of the lowest class that waits.
inline constexpr std::uint32_t kOvertakesMax = 19;

// How many slots of a lane gradients of lower classes may hold together, if the lane has keys of a
// higher class. Enough to keep the lane busy.
inline constexpr std::uint32_t YieldingSlotsMax(std::uint32_t slots_per_lane) {
  return std::max(slots_per_lane / 4, 1u);
}

}  // namespace phub
