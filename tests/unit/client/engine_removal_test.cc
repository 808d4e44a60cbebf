// Removing keys from the engine: what is dropped, and that their numbers can be used again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "client/engine.h"
#include "tests/unit/client/engine_fixture.h"

namespace phub::client {
namespace {

using ::testing::ElementsAre;

class EngineRemovalTest : public EngineTest {
 protected:
  TestKey& AddCollective(const std::vector<std::uint32_t>& chunk_bins) {
    return AddKey(chunk_bins, 0, {}, 0, /*collective=*/true);
  }
  void RemoveLastKey() {
    TestKey& key = *keys_.back();
    Submit({.kind = Command::Kind::kRemoveKeys, .key = key.index});
    Run();
    ASSERT_EQ(key.rounds.removed_count, 1);
    layout_->RemoveLast(batches_.back()->keys.front().layout);
    batches_.pop_back();
    keys_.pop_back();
  }
  // Chunks 1 and 2 of lane 0.
  void AddKeyAndCompleteARound() {
    Push(AddCollective({0, 0}));
    Run();
    Reply(0, 1, 1, 1.0f);
    Reply(0, 2, 1, 1.0f);
    Run();
  }
  float FirstOf(const FakeTransport::Posted& posted) {
    float first = 0.0f;
    std::memcpy(&first, posted.bytes.data(), sizeof first);
    return first;
  }
};

TEST_F(EngineRemovalTest, LaterKeysGetTheNumbersAndStartAtTheFirstIteration) {
  Start(2, 4);
  AddCollective({0, 1});
  for (int i = 0; i < 3; ++i) {
    TestKey& key = AddCollective({1, 0, 1});
    for (std::uint64_t round = 1; round <= 2; ++round) {
      Push(key);
      const auto posted = RunAndTake();
      ASSERT_EQ(posted.size(), 3u);
      EXPECT_EQ(posted[0].header.iteration, Iteration{round});
      Reply(0, 1, round, 1.0f);
      Reply(1, 1, round, 2.0f);
      Reply(1, 2, round, 3.0f);
      Run();
    }
    EXPECT_EQ(key.rounds.complete_count, 2);
    RemoveLastKey();
    EXPECT_EQ(engine_->free_slots(0), 4u);
    EXPECT_EQ(engine_->free_slots(1), 4u);
  }
  TestKey& first = *keys_.front();
  Push(first);
  EXPECT_EQ(RunAndTake().size(), 2u);
}

TEST_F(EngineRemovalTest, AReplyForARemovedChunkClosesTheLane) {
  Start(1, 4);
  AddCollective({0});
  AddKeyAndCompleteARound();
  RemoveLastKey();
  Reply(0, 2, 1, 1.0f);
  Run();
  ASSERT_EQ(lanes_.closed_lanes.size(), 1u);
  EXPECT_EQ(lanes_.closed_lanes[0].protocol_error, transport::ProtocolError::kSlotRange);
}

// A slot remembers chunk and ticket of its copy. A later key has the same ones.
TEST_F(EngineRemovalTest, TheCopyInASlotIsNotTakenForThatOfALaterKey) {
  Start(1, 1);
  transport_.ShareSlots(1, kChunkBytes);
  TestKey& removed = AddCollective({0});
  removed.gradients.assign(kChunkElements, 5.0f);
  Push(removed);
  auto posted = RunAndTake();
  ASSERT_EQ(posted.size(), 1u);
  EXPECT_EQ(FirstOf(posted[0]), 5.0f);
  Reply(0, 0, 1, 1.0f);
  Run();
  RemoveLastKey();
  TestKey& later = AddCollective({0});
  later.gradients.assign(kChunkElements, 7.0f);
  Push(later);
  posted = RunAndTake();
  ASSERT_EQ(posted.size(), 1u);
  EXPECT_EQ(posted[0].header.chunk, ChunkIndex{0});
  EXPECT_EQ(FirstOf(posted[0]), 7.0f);
}

TEST_F(EngineRemovalTest, WorksWhileALaneIsAwayAndWhenItReturns) {
  Start(1, 2);
  AddCollective({0});
  AddKeyAndCompleteARound();
  transport_.Break(0, transport::TransportError::kReset);
  Run();
  RemoveLastKey();
  TestKey& later = AddCollective({0});
  Push(later);
  transport_.TakePosted();
  Attach(0);
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre(1));
  Reply(1, 1, 1, 9.0f);
  Run();
  EXPECT_EQ(later.parameters[0], 9.0f);
}

}  // namespace
}  // namespace phub::client
