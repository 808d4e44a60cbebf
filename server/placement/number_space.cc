#include "server/placement/number_space.h"

#include <iterator>

#include "common/base/check.h"

namespace phub::server {

std::uint32_t NumberSpace::Append(std::uint32_t count) {
  const std::uint32_t first = end_;
  end_ += count;
  used_ += count;
  return first;
}

std::uint32_t NumberSpace::Take(std::uint32_t count) {
  for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
    if (gap->second < count) continue;
    const std::uint32_t first = gap->first;
    if (gap->second > count) gaps_.emplace_hint(std::next(gap), first + count, gap->second - count);
    gaps_.erase(gap);
    used_ += count;
    return first;
  }
  return Append(count);
}

void NumberSpace::Return(std::uint32_t first, std::uint32_t count) {
  PHUB_CHECK(count <= used_ && first + count <= end_, "first={} count={} end={}", first, count,
             end_);
  if (count == 0) return;
  used_ -= count;
  const auto after = gaps_.lower_bound(first);
  if (after != gaps_.end() && after->first == first + count) {
    count += after->second;
    gaps_.erase(after);
  }
  const auto next = gaps_.lower_bound(first);
  if (next != gaps_.begin()) {
    const auto before = std::prev(next);
    PHUB_CHECK(before->first + before->second <= first, "first={}", first);
    if (before->first + before->second == first) {
      first = before->first;
      count += before->second;
      gaps_.erase(before);
    }
  }
  if (first + count == end_) {
    end_ = first;
  } else {
    gaps_.emplace(first, count);
  }
}

}  // namespace phub::server
