#include "client/layout.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace phub::client {
namespace {

using testing::HasSubstr;

KeyPlacementView View(std::uint32_t index, std::uint64_t bytes,
                      const std::vector<std::uint32_t>& cores) {
  return {.name = fmt::format("key{}", index),
          .key = KeyIndex{index},
          .bytes = bytes,
          .chunk_cores = cores};
}

TEST(LaneLayout, ChunksAreNumberedPerLaneInOrderOfKeysThenOffsets) {
  LaneLayout layout(256, {CoreIndex{4}, CoreIndex{9}});
  const std::vector<std::uint32_t> first{9, 4, 9};
  const std::vector<std::uint32_t> second{9, 4};
  const std::vector<KeyPlacementView> views{View(0, 3 * 256, first), View(1, 256 + 8, second)};
  const auto keys = layout.AddKeys(views);
  ASSERT_TRUE(keys.ok()) << keys.status();
  const auto& a = keys->at(0).chunks;
  const auto& b = keys->at(1).chunks;
  EXPECT_EQ(a[0].lane, 1u);
  EXPECT_EQ(a[0].chunk, ChunkIndex{0});
  EXPECT_EQ(a[1].lane, 0u);
  EXPECT_EQ(a[1].chunk, ChunkIndex{0});
  EXPECT_EQ(a[2].chunk, ChunkIndex{1});
  EXPECT_EQ(a[2].offset_bytes, 512u);
  EXPECT_EQ(b[0].chunk, ChunkIndex{2});
  EXPECT_EQ(b[0].bytes, 256u);
  EXPECT_EQ(b[1].chunk, ChunkIndex{1});
  EXPECT_EQ(b[1].bytes, 8u);  // the last chunk is what is left
  EXPECT_EQ(layout.chunk_count(0), 2u);
  EXPECT_EQ(layout.chunk_count(1), 3u);
}

TEST(LaneLayout, NextBatchGoesOnWhereTheLastEnded) {
  LaneLayout layout(256, {CoreIndex{0}});
  const std::vector<std::uint32_t> one{0};
  const KeyPlacementView first = View(0, 4, one);
  const KeyPlacementView second = View(1, 4, one);
  ASSERT_TRUE(layout.AddKeys({&first, 1}).ok());
  const auto keys = layout.AddKeys({&second, 1});
  ASSERT_TRUE(keys.ok());
  EXPECT_EQ(keys->front().chunks[0].chunk, ChunkIndex{1});
}

TEST(LaneLayout, WrongNumberOfChunksIsRefusedByName) {
  LaneLayout layout(256, {CoreIndex{0}});
  const std::vector<std::uint32_t> two{0, 0};
  const KeyPlacementView view = View(0, 256, two);
  const auto keys = layout.AddKeys({&view, 1});
  ASSERT_FALSE(keys.ok());
  EXPECT_THAT(std::string(keys.status().message()), HasSubstr("key0"));
}

TEST(LaneLayout, UnknownCoreIsRefusedAndTheBatchLeavesNoTrace) {
  LaneLayout layout(256, {CoreIndex{0}});
  const std::vector<std::uint32_t> good{0};
  const std::vector<std::uint32_t> bad{1};
  const std::vector<KeyPlacementView> views{View(0, 256, good), View(1, 256, bad)};
  const auto keys = layout.AddKeys(views);
  ASSERT_FALSE(keys.ok());
  EXPECT_THAT(std::string(keys.status().message()), HasSubstr("core 1"));
  EXPECT_EQ(layout.chunk_count(0), 0u);
  EXPECT_EQ(layout.key_count(), 0u);
}

TEST(LaneLayout, KeyIndexOutOfSequenceIsRefused) {
  LaneLayout layout(256, {CoreIndex{0}});
  const std::vector<std::uint32_t> one{0};
  const KeyPlacementView view = View(1, 256, one);
  EXPECT_FALSE(layout.AddKeys({&view, 1}).ok());
}

TEST(ChunkCount, RoundsUp) {
  EXPECT_EQ(ChunkCount(1, 256), 1u);
  EXPECT_EQ(ChunkCount(256, 256), 1u);
  EXPECT_EQ(ChunkCount(257, 256), 2u);
  EXPECT_EQ(ChunkCount(UINT64_MAX, 256), UINT64_MAX / 256 + 1);
}

}  // namespace
}  // namespace phub::client
