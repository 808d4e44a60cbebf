// Tracks the received elements of one tensor: each exactly once, in any order. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace phub::checkpoint {

struct ElementRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;  // one past the last

  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

class ReceivedRanges {
 public:
  // Adds a range. If it overlaps a received range, returns that range and adds nothing.
  // REQUIRES: begin <= end.
  std::optional<ElementRange> Add(ElementRange range);
  // The first missing range of 0..element_count.
  std::optional<ElementRange> FirstGap(std::uint64_t element_count) const;

 private:
  std::map<std::uint64_t, std::uint64_t> ends_;  // by begin; disjoint, neighbours are merged
};

}  // namespace phub::checkpoint
