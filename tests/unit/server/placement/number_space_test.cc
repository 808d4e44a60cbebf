#include "server/placement/number_space.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "common/base/random.h"

namespace phub::server {
namespace {

TEST(NumberSpaceTest, RangesThatAreReturnedInReverseLeaveNothing) {
  NumberSpace numbers;
  EXPECT_EQ(numbers.Append(3), 0u);
  EXPECT_EQ(numbers.Append(2), 3u);
  numbers.Return(3, 2);
  EXPECT_EQ(numbers.end(), 3u);
  numbers.Return(0, 3);
  EXPECT_EQ(numbers.end(), 0u);
  EXPECT_EQ(numbers.used(), 0u);
}

TEST(NumberSpaceTest, TakesTheFirstGapThatIsLargeEnough) {
  NumberSpace numbers;
  numbers.Append(10);
  numbers.Return(1, 2);
  numbers.Return(5, 3);
  EXPECT_EQ(numbers.Take(3), 5u);
  EXPECT_EQ(numbers.Take(1), 1u);
  EXPECT_EQ(numbers.Append(1), 10u);  // appended, although there is a gap
  EXPECT_EQ(numbers.Take(1), 2u);
  EXPECT_EQ(numbers.Take(1), 11u);
}

TEST(NumberSpaceTest, GapsNextToEachOtherBecomeOne) {
  NumberSpace numbers;
  numbers.Append(10);
  numbers.Return(2, 2);
  numbers.Return(6, 2);
  numbers.Return(4, 2);
  EXPECT_EQ(numbers.Take(6), 2u);
  numbers.Return(2, 6);
  numbers.Return(8, 2);
  EXPECT_EQ(numbers.end(), 2u);
}

// Expect: as a set of the numbers in use would.
TEST(NumberSpaceTest, NoNumberIsTakenTwice) {
  SeededRandom random(7);
  NumberSpace numbers;
  std::set<std::uint32_t> used;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> ranges;
  for (int i = 0; i < 20'000; ++i) {
    if (ranges.empty() || random.Chance(1, 2)) {
      const auto count = static_cast<std::uint32_t>(1 + random.Below(5));
      const std::uint32_t first = random.Chance(1, 4) ? numbers.Append(count) : numbers.Take(count);
      for (std::uint32_t n = first; n < first + count; ++n) ASSERT_TRUE(used.insert(n).second);
      ranges.emplace_back(first, count);
    } else {
      const std::size_t at = random.Below(ranges.size());
      const auto [first, count] = ranges[at];
      ranges.erase(ranges.begin() + static_cast<std::ptrdiff_t>(at));
      for (std::uint32_t n = first; n < first + count; ++n) used.erase(n);
      numbers.Return(first, count);
    }
    ASSERT_EQ(numbers.used(), used.size());
    ASSERT_EQ(numbers.end(), used.empty() ? 0 : *used.rbegin() + 1);
  }
}

}  // namespace
}  // namespace phub::server
