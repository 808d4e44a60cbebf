#include "client/cli/stall_list.h"

#include <gtest/gtest.h>

#include <string>

namespace phub::client::cli {
namespace {

void AddStall(v1::ListStallsResponse& response, const std::string& key, std::uint32_t chunks,
              std::int64_t since_ns, std::uint32_t rank) {
  v1::Stall& stall = *response.add_stalls();
  stall.set_key(key);
  stall.set_iteration(7);
  stall.set_chunks_waiting(chunks);
  stall.set_since_ns(since_ns);
  stall.add_waiting_for()->set_rank(rank);
}

TEST(StallList, RoundsOfOneKeyBecomeOne) {
  v1::ListStallsResponse first, second, all;
  AddStall(first, "w", 2, 50, 1);
  first.add_lost_elsewhere()->set_rank(9);
  AddStall(second, "w", 3, 60, 1);
  AddStall(second, "b", 1, 70, 2);
  second.add_lost_elsewhere()->set_rank(9);
  MergeStalls(first, all);
  MergeStalls(second, all);
  ASSERT_EQ(all.stalls_size(), 2);
  EXPECT_EQ(all.stalls(0).key(), "b");
  EXPECT_EQ(all.stalls(1).key(), "w");
  EXPECT_EQ(all.stalls(1).chunks_waiting(), 5u);
  EXPECT_EQ(all.stalls(1).since_ns(), 60);
  EXPECT_EQ(all.stalls(1).waiting_for_size(), 1);
  EXPECT_EQ(all.lost_elsewhere_size(), 1);
  // Expect: other ranks and other iterations stay apart.
  v1::ListStallsResponse third;
  AddStall(third, "w", 1, 10, 3);
  AddStall(third, "w", 1, 10, 4);
  third.mutable_stalls(1)->set_iteration(8);
  MergeStalls(third, all);
  ASSERT_EQ(all.stalls_size(), 3);
  EXPECT_EQ(all.stalls(1).waiting_for_size(), 2);
}

}  // namespace
}  // namespace phub::client::cli
