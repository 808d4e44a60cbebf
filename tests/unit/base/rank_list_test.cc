#include "common/base/rank_list.h"

#include <gtest/gtest.h>

#include <vector>

namespace phub {
namespace {

TEST(RankList, NamesTheFirstAndCountsTheOthers) {
  const std::vector<std::uint32_t> ranks = {1, 3, 8, 9};
  EXPECT_EQ(ListedRanks(ranks, 4), "ranks 1, 3, 8, 9");
  EXPECT_EQ(ListedRanks(ranks, 2), "ranks 1, 3 and 2 others");
  EXPECT_EQ(ListedRanks({ranks.data(), 1}, 2), "rank 1");
  EXPECT_EQ(ListedNumbers(ranks, 3), "1, 3, 8 and 1 other");
}

}  // namespace
}  // namespace phub
