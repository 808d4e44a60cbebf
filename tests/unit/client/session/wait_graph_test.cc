#include "client/session/wait_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>

namespace phub::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::Stall& AddStall(v1::ListStallsResponse& stalls, const char* key,
                    std::initializer_list<std::uint32_t> pushed_by,
                    std::initializer_list<std::uint32_t> waiting_for) {
  v1::Stall& stall = *stalls.add_stalls();
  stall.set_key(key);
  for (const std::uint32_t rank : pushed_by) stall.add_pushed_by(rank);
  for (const std::uint32_t rank : waiting_for) stall.add_waiting_for()->set_rank(rank);
  return stall;
}

TEST(WaitGraph, NamesACycleOfTwoRanks) {
  v1::ListStallsResponse stalls;
  AddStall(stalls, "other", {0}, {3});
  v1::Stall& x = AddStall(stalls, "p/0 of group x", {0}, {1});
  x.set_pooled(true);
  x.set_pool_operation(4);
  AddStall(stalls, "p/0 of group y", {1}, {0});
  EXPECT_EQ(DescribeWait(stalls, "p/0 of group x", 0),
            "it waits for rank 1; ranks wait for each other: rank 0 has pushed key p/0 of group x "
            "(operation 4), which waits for rank 1; rank 1 has pushed key p/0 of group y, which "
            "waits for rank 0");
}

TEST(WaitGraph, FindsTheShortestCycleThroughTheKey) {
  v1::ListStallsResponse stalls;
  AddStall(stalls, "a", {0, 5}, {1, 2});
  AddStall(stalls, "b", {1}, {3});
  AddStall(stalls, "c", {3}, {4, 0});
  AddStall(stalls, "d", {2}, {6});  // nobody waits for rank 0 there
  AddStall(stalls, "e", {0}, {7});  // a cycle without the key
  AddStall(stalls, "f", {7}, {0});
  EXPECT_EQ(DescribeWait(stalls, "a", 0),
            "it waits for ranks 1, 2; ranks wait for each other: rank 0 has pushed key a, which "
            "waits for rank 1; rank 1 has pushed key b, which waits for rank 3; rank 3 has pushed "
            "key c, which waits for rank 0");
}

TEST(WaitGraph, ARankThatIsOnlyLateIsNoCycle) {
  v1::ListStallsResponse stalls;
  v1::Stall& stall = AddStall(stalls, "a", {0}, {});
  for (std::uint32_t rank = 1; rank < 12; ++rank) stall.add_waiting_for()->set_rank(rank);
  AddStall(stalls, "b", {1}, {2});
  const std::string text = DescribeWait(stalls, "a", 0);
  EXPECT_EQ(text, "it waits for ranks 1, 2, 3, 4, 5, 6, 7, 8 and 3 others");
  EXPECT_EQ(DescribeWait(stalls, "c", 0), "");
}

TEST(WaitGraph, ABarrierMayBePartOfACycle) {
  v1::ListStallsResponse stalls;
  EXPECT_EQ(DescribeBarrierWait(stalls, 0), "");
  AddStall(stalls, "w", {1}, {0});
  v1::StalledBarrier& barrier = *stalls.mutable_barrier();
  barrier.set_number(3);
  for (const std::uint32_t rank : {0u, 2u}) barrier.add_waiting(rank);
  for (const std::uint32_t rank : {1u, 4u}) barrier.add_missing(rank);
  EXPECT_EQ(DescribeBarrierWait(stalls, 0),
            "it waits for ranks 1, 4; ranks wait for each other: rank 0 has reached barrier 3, "
            "which waits for rank 1; rank 1 has pushed key w, which waits for rank 0");
  EXPECT_EQ(DescribeBarrierWait(stalls, 2), "it waits for ranks 1, 4");
  EXPECT_EQ(DescribeBarrierWait(stalls, 1), "");
  EXPECT_THAT(DescribeWait(stalls, "w", 1), HasSubstr("rank 0 has reached barrier 3, which waits"));
  barrier.clear_missing();
  EXPECT_EQ(DescribeBarrierWait(stalls, 0), "it waits for ranks of other racks");
}

// A rank that both pushed and is missing cannot be: an answer of several daemons may say so.
TEST(WaitGraph, ContradictionsEnd) {
  v1::ListStallsResponse stalls;
  AddStall(stalls, "a", {0, 1}, {0, 1});
  EXPECT_THAT(DescribeWait(stalls, "a", 0), HasSubstr("rank 0 has pushed key a, which waits for"));
  EXPECT_THAT(DescribeWait(stalls, "a", 9), Not(HasSubstr("each other")));
}

}  // namespace
}  // namespace phub::client
