#include "client/layout.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace phub::client {
namespace {

using ::testing::HasSubstr;

// A key with elements of four bytes.
KeyPlacementView View(std::uint32_t index, std::uint64_t element_count,
                      const std::vector<std::uint32_t>& bins) {
  return {.name = fmt::format("key{}", index),
          .key = KeyIndex{index},
          .element_count = element_count,
          .chunk_bins = bins};
}

TEST(LaneLayout, ChunksAreNumberedPerLaneInOrderOfKeysThenOffsets) {
  LaneLayout layout(256, 2);
  const std::vector<std::uint32_t> first{1, 0, 1};
  const std::vector<std::uint32_t> second{1, 0};
  const std::vector<KeyPlacementView> views{View(0, 3 * 64, first), View(1, 64 + 2, second)};
  const auto keys = layout.AddKeys(views);
  ASSERT_TRUE(keys.ok()) << keys.status();
  const auto& a = keys->at(0).chunks;
  const auto& b = keys->at(1).chunks;
  EXPECT_EQ(a[0].lane, 1u);
  EXPECT_EQ(a[0].chunk, ChunkIndex{0});
  EXPECT_EQ(a[1].lane, 0u);
  EXPECT_EQ(a[1].chunk, ChunkIndex{0});
  EXPECT_EQ(a[2].chunk, ChunkIndex{1});
  EXPECT_EQ(a[2].element_offset, 128u);
  EXPECT_EQ(b[0].chunk, ChunkIndex{2});
  EXPECT_EQ(b[0].element_count, 64u);
  EXPECT_EQ(b[1].chunk, ChunkIndex{1});
  EXPECT_EQ(b[1].element_count, 2u);  // the last chunk has the remaining elements
  EXPECT_EQ(layout.chunk_count(0), 2u);
  EXPECT_EQ(layout.chunk_count(1), 3u);
}

TEST(LaneLayout, NextBatchGoesOnWhereTheLastEnded) {
  LaneLayout layout(256, 1);
  const std::vector<std::uint32_t> one{0};
  const KeyPlacementView first = View(0, 1, one);
  const KeyPlacementView second = View(1, 1, one);
  ASSERT_TRUE(layout.AddKeys({&first, 1}).ok());
  const auto keys = layout.AddKeys({&second, 1});
  ASSERT_TRUE(keys.ok());
  EXPECT_EQ(keys->front().chunks[0].chunk, ChunkIndex{1});
}

TEST(LaneLayout, WrongNumberOfChunksIsRefusedByName) {
  LaneLayout layout(256, 1);
  const std::vector<std::uint32_t> two{0, 0};
  const KeyPlacementView view = View(0, 64, two);
  const auto keys = layout.AddKeys({&view, 1});
  ASSERT_FALSE(keys.ok());
  EXPECT_THAT(std::string(keys.status().message()), HasSubstr("key0"));
}

TEST(LaneLayout, UnknownBinIsRefusedAndTheBatchLeavesNoTrace) {
  LaneLayout layout(256, 1);
  const std::vector<std::uint32_t> good{0};
  const std::vector<std::uint32_t> bad{1};
  const std::vector<KeyPlacementView> views{View(0, 64, good), View(1, 64, bad)};
  const auto keys = layout.AddKeys(views);
  ASSERT_FALSE(keys.ok());
  EXPECT_THAT(std::string(keys.status().message()), HasSubstr("core loop 1"));
  EXPECT_EQ(layout.chunk_count(0), 0u);
  EXPECT_EQ(layout.key_count(), 0u);
}

TEST(LaneLayout, ChunksAreCutByTheKeysElementSize) {
  LaneLayout layout(256, 1);
  const std::vector<std::uint32_t> bins(3, 0);
  KeyPlacementView wide = View(0, 2 * 32 + 1, bins);
  wide.element_bytes = 8;
  KeyPlacementView narrow = View(1, 2 * 256 + 255, bins);
  narrow.element_bytes = 1;
  const std::vector<KeyPlacementView> views{wide, narrow};
  const auto keys = layout.AddKeys(views);
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(keys->at(0).chunks[1].element_offset, 32u);
  EXPECT_EQ(keys->at(0).chunks[2].element_count, 1u);
  EXPECT_EQ(keys->at(1).chunks[1].element_count, 256u);
  EXPECT_EQ(keys->at(1).chunks[2].element_count, 255u);
}

TEST(LaneLayout, KeyIndexOutOfSequenceIsRefused) {
  LaneLayout layout(256, 1);
  const std::vector<std::uint32_t> one{0};
  const KeyPlacementView view = View(1, 64, one);
  EXPECT_FALSE(layout.AddKeys({&view, 1}).ok());
}

TEST(LaneLayout, PartsBeginAtChunkBordersAndBelongToRanks) {
  LaneLayout layout(256, 2);
  const std::vector<std::uint32_t> bins{0, 1, 0, 1, 0, 1};
  KeyPlacementView view = View(0, 3 * 65, bins);
  view.parts = {KeyMovement::kGather, 3, {}};
  const auto keys = layout.AddKeys({&view, 1});
  ASSERT_TRUE(keys.ok()) << keys.status();
  const std::vector<ChunkPlace>& chunks = keys->at(0).chunks;
  ASSERT_EQ(chunks.size(), 6u);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(chunks[2 * rank].sender.value, rank);
    EXPECT_EQ(chunks[2 * rank].element_offset, rank * 65u);
    EXPECT_EQ(chunks[2 * rank].element_count, 64u);
    EXPECT_EQ(chunks[2 * rank + 1].sender.value, rank);
    EXPECT_EQ(chunks[2 * rank + 1].element_offset, rank * 65u + 64u);
    EXPECT_EQ(chunks[2 * rank + 1].element_count, 1u);
  }
}

}  // namespace
}  // namespace phub::client
