#include "common/base/rank_list.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace phub {

std::string AndOthers(std::size_t count) {
  return count == 0 ? "" : fmt::format(" and {} other{}", count, count == 1 ? "" : "s");
}

std::string ListedNumbers(std::span<const std::uint32_t> numbers, std::size_t named_max) {
  const std::size_t named = std::min(numbers.size(), named_max);
  return fmt::format("{}{}", fmt::join(numbers.first(named), ", "),
                     AndOthers(numbers.size() - named));
}

std::string ListedRanks(std::span<const std::uint32_t> ranks, std::size_t named_max) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + ListedNumbers(ranks, named_max);
}

}  // namespace phub
