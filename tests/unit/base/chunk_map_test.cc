#include "common/base/chunk_map.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace phub {
namespace {

constexpr KeyMovement kMovements[] = {KeyMovement::kAllReduce,     KeyMovement::kGather,
                                      KeyMovement::kReduceScatter, KeyMovement::kAllToAll,
                                      KeyMovement::kScatter,       KeyMovement::kGatherToOne};
static_assert(std::size(kMovements) == kMovementMax + 1);

// Positions of the parts that a rank sends or receives, in order of the parts.
std::vector<std::uint32_t> Places(const KeyParts& parts, Rank rank, bool sent) {
  std::vector<std::uint32_t> places;
  for (std::uint32_t part = 0; part < parts.count(); ++part) {
    const Rank who = sent ? parts.SenderOf(part) : parts.ReceiverOf(part);
    if (who != kEveryRank && who != rank) continue;
    places.push_back(sent ? parts.PlaceSent(part) : parts.PlaceReceived(part));
  }
  return places;
}

std::vector<std::uint32_t> CountTo(std::uint32_t count) {
  std::vector<std::uint32_t> numbers;
  for (std::uint32_t i = 0; i < count; ++i) numbers.push_back(i);
  return numbers;
}

TEST(KeyParts, EveryRanksMemoryIsFilledInOrder) {
  for (const KeyMovement movement : kMovements) {
    for (std::uint32_t ranks = 1; ranks <= 5; ++ranks) {
      for (std::uint32_t root = 0; root < (HasRoot(movement) ? ranks : 1); ++root) {
        const KeyParts parts{movement, ranks, Rank{root}};
        for (std::uint32_t rank = 0; rank < ranks; ++rank) {
          SCOPED_TRACE(std::string(ToString(movement)) + " rank " + std::to_string(rank) + " of " +
                       std::to_string(ranks) + " root " + std::to_string(root));
          EXPECT_EQ(Places(parts, Rank{rank}, true), CountTo(parts.SentBy(Rank{rank})));
          EXPECT_EQ(Places(parts, Rank{rank}, false), CountTo(parts.ReceivedBy(Rank{rank})));
          EXPECT_LE(parts.SentBy(Rank{rank}), parts.largest());
          EXPECT_LE(parts.ReceivedBy(Rank{rank}), parts.largest());
        }
      }
    }
  }
}

TEST(KeyParts, EachPartThatMovesHasOneSender) {
  for (const KeyMovement movement : kMovements) {
    const KeyParts parts{movement, 4, Rank{}};
    for (std::uint32_t part = 0; part < parts.count(); ++part) {
      EXPECT_EQ(parts.SenderOf(part) != kEveryRank, MovesBytes(movement)) << ToString(movement);
    }
  }
}

TEST(KeyParts, APartOfAnAllToAllGoesFromOneRankToOne) {
  constexpr KeyParts kParts{KeyMovement::kAllToAll, 3, {}};
  EXPECT_EQ(kParts.count(), 9u);
  EXPECT_EQ(kParts.SenderOf(5), Rank{1});
  EXPECT_EQ(kParts.ReceiverOf(5), Rank{2});
  EXPECT_EQ(kParts.PlaceSent(5), 2u);
  EXPECT_EQ(kParts.PlaceReceived(5), 1u);
}

TEST(KeyParts, TheRootAloneSendsAScatterAndReceivesAGatherToOne) {
  constexpr KeyParts kScatter{KeyMovement::kScatter, 3, Rank{1}};
  constexpr KeyParts kGather{KeyMovement::kGatherToOne, 3, Rank{1}};
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(kScatter.SentBy(Rank{rank}), rank == 1 ? 3u : 0u);
    EXPECT_EQ(kScatter.ReceivedBy(Rank{rank}), 1u);
    EXPECT_EQ(kScatter.SenderOf(rank), Rank{1});
    EXPECT_EQ(kScatter.ReceiverOf(rank), Rank{rank});
    EXPECT_EQ(kGather.SentBy(Rank{rank}), 1u);
    EXPECT_EQ(kGather.ReceivedBy(Rank{rank}), rank == 1 ? 3u : 0u);
    EXPECT_EQ(kGather.SenderOf(rank), Rank{rank});
    EXPECT_EQ(kGather.ReceiverOf(rank), Rank{1});
  }
}

TEST(ChunkMap, RoundsUp) {
  constexpr KeyParts kThree{KeyMovement::kGather, 3, {}};
  EXPECT_EQ(ChunkMap(1, {}, 256).count(), 1u);
  EXPECT_EQ(ChunkMap(256, {}, 256).count(), 1u);
  EXPECT_EQ(ChunkMap(257, {}, 256).count(), 2u);
  EXPECT_EQ(ChunkMap(std::uint64_t{3} * 257, kThree, 256).count(), 6u);
  EXPECT_EQ(ChunkMap(UINT64_MAX, {}, 256).count(), UINT64_MAX / 256 + 1);
}

TEST(ChunkMap, OffsetsAreThoseInTheKeyAndInRanksMemory) {
  // Two ranks; parts of 10 elements in chunks of 8 and 2.
  constexpr ChunkMap kMap(40, {KeyMovement::kAllToAll, 2, {}}, 8);
  static_assert(kMap.count() == 8);
  const ChunkMap::Chunk chunk = kMap.At(5);  // of part 2: from rank 1 to rank 0
  EXPECT_EQ(chunk.element_offset, 28u);
  EXPECT_EQ(chunk.element_count, 2u);
  EXPECT_EQ(chunk.sender, Rank{1});
  EXPECT_EQ(chunk.receiver, Rank{0});
  EXPECT_EQ(chunk.sent_offset, 8u);
  EXPECT_EQ(chunk.received_offset, 18u);
}

}  // namespace
}  // namespace phub
