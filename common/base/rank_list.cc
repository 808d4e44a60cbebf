#include "common/base/rank_list.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace phub {

std::string ListedNumbers(std::span<const std::uint32_t> numbers, std::size_t named_max) {
  const std::size_t named = std::min(numbers.size(), named_max);
  std::string text = fmt::format("{}", fmt::join(numbers.first(named), ", "));
  const std::size_t others = numbers.size() - named;
  if (others > 0) text += fmt::format(" and {} other{}", others, others == 1 ? "" : "s");
  return text;
}

std::string ListedRanks(std::span<const std::uint32_t> ranks, std::size_t named_max) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + ListedNumbers(ranks, named_max);
}

}  // namespace phub
