#include "common/checkpoint/received_ranges.h"

#include <iterator>

#include "common/base/check.h"

namespace phub::checkpoint {

std::optional<ElementRange> ReceivedRanges::Add(ElementRange range) {
  PHUB_CHECK(range.begin <= range.end, "begin={} end={}", range.begin, range.end);
  if (range.begin == range.end) return std::nullopt;
  auto next = ends_.lower_bound(range.begin);
  if (next != ends_.end() && next->first < range.end)
    return ElementRange{next->first, next->second};
  const auto before = next == ends_.begin() ? ends_.end() : std::prev(next);
  if (before != ends_.end() && before->second > range.begin)
    return ElementRange{before->first, before->second};

  if (next != ends_.end() && next->first == range.end) {
    range.end = next->second;
    ends_.erase(next);
  }
  if (before != ends_.end() && before->second == range.begin) {
    before->second = range.end;
  } else {
    ends_[range.begin] = range.end;
  }
  return std::nullopt;
}

std::optional<ElementRange> ReceivedRanges::FirstGap(std::uint64_t element_count) const {
  if (element_count == 0) return std::nullopt;
  const auto first = ends_.begin();
  if (first == ends_.end()) return ElementRange{0, element_count};
  if (first->first > 0) return ElementRange{0, first->first};
  if (first->second >= element_count) return std::nullopt;
  const auto second = std::next(first);
  return ElementRange{first->second, second == ends_.end() ? element_count : second->first};
}

}  // namespace phub::checkpoint
