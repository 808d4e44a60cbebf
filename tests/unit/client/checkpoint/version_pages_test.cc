#include "client/checkpoint/version_pages.h"

#include <gtest/gtest.h>

namespace phub::client {
namespace {

v1::GetVersionsResponse Page(std::uint32_t first, std::uint32_t count, std::uint32_t next,
                             std::uint64_t incarnation = 7) {
  v1::GetVersionsResponse page;
  for (std::uint32_t i = 0; i < count; ++i) page.add_keys()->set_key_index(first + i);
  page.add_racks("rack0");
  page.add_racks("rack1");
  page.set_next_key(next);
  page.set_incarnation(incarnation);
  return page;
}

TEST(VersionPages, AreJoined) {
  v1::GetVersionsResponse all;
  ASSERT_TRUE(AddPage(Page(0, 3, 3), all).ok());
  EXPECT_EQ(all.next_key(), 3u);
  ASSERT_TRUE(AddPage(Page(3, 2, 0), all).ok());
  EXPECT_EQ(all.next_key(), 0u);
  EXPECT_EQ(all.racks_size(), 2);
  ASSERT_EQ(all.keys_size(), 5);
  EXPECT_EQ(all.keys(4).key_index(), 4u);
}

TEST(VersionPages, OfTwoRunsAreNotJoined) {
  v1::GetVersionsResponse all;
  ASSERT_TRUE(AddPage(Page(0, 3, 3), all).ok());
  EXPECT_EQ(AddPage(Page(3, 2, 0, 8), all).code(), absl::StatusCode::kAborted);
}

TEST(VersionPages, MustAdvance) {
  v1::GetVersionsResponse all;
  ASSERT_TRUE(AddPage(Page(0, 3, 3), all).ok());
  EXPECT_EQ(AddPage(Page(3, 2, 3), all).code(), absl::StatusCode::kInternal);
}

TEST(LoadedStatePages, AreJoinedIfTheyAreOfOneCheckpoint) {
  v1::LoadedState page;
  page.set_iteration(40);
  page.mutable_source()->set_directory("/data");
  page.add_keys();
  page.set_next(1);
  v1::LoadedState all;
  ASSERT_TRUE(AddPage(page, all).ok());
  EXPECT_EQ(all.next(), 1u);
  EXPECT_EQ(AddPage(page, all).code(), absl::StatusCode::kInternal);
  page.clear_next();
  ASSERT_TRUE(AddPage(page, all).ok());
  EXPECT_EQ(all.next(), 0u);
  EXPECT_EQ(all.keys_size(), 2);
  EXPECT_EQ(all.source().directory(), "/data");
  all.set_next(2);
  page.set_iteration(41);
  EXPECT_EQ(AddPage(page, all).code(), absl::StatusCode::kAborted);
}

}  // namespace
}  // namespace phub::client
