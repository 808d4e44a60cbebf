// Lists of ranks in messages. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace phub {

// " and 40 others", empty for 0.
std::string AndOthers(std::size_t count);
// "1, 3", or the first `named_max` and "and 40 others".
std::string ListedNumbers(std::span<const std::uint32_t> numbers, std::size_t named_max);
// "rank 2", "ranks 1, 3 and 40 others".
std::string ListedRanks(std::span<const std::uint32_t> ranks, std::size_t named_max);

}  // namespace phub
