// Keys of groups in the engine: chunks have the daemon's numbers, with holes between them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "client/engine.h"
#include "common/base/group_keys.h"
#include "tests/unit/client/engine_fixture.h"

namespace phub::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class EngineGroupsTest : public EngineTest {
 protected:
  // A key of a group, on one lane: its first chunk there has that number.
  TestKey& AddToGroup(std::uint32_t number, std::uint32_t first_chunk, std::size_t chunks = 1,
                      std::uint8_t level = 0) {
    auto key = std::make_unique<TestKey>();
    key->index = KeyIndex{kGroupKeysFirst + number};
    key->gradients.assign(chunks * kChunkElements, static_cast<float>(number));
    key->parameters.assign(chunks * kChunkElements, -1.0f);
    const std::vector<std::uint32_t> bins(chunks, 0);
    const KeyPlacementView view{.name = "of_group",
                                .key = key->index,
                                .element_count = chunks * kChunkElements,
                                .chunk_bins = bins,
                                .first_chunks = {&first_chunk, 1}};
    auto layouts = layout_->AddGroupKeys({&view, 1});
    EXPECT_TRUE(layouts.ok()) << layouts.status();
    of_groups_.push_back(std::make_unique<KeyBatch>());
    of_groups_.back()->keys.push_back(
        {.layout = layouts->front(), .level = level, .collective = true, .listener = &key->rounds});
    Submit({.kind = Command::Kind::kAddKeys, .batch = of_groups_.back().get()});
    group_keys_.push_back(std::move(key));
    return *group_keys_.back();
  }
  void Remove(std::size_t at) {
    Submit({.kind = Command::Kind::kRemoveKeys, .batch = of_groups_[at].get()});
    Run();
    ASSERT_EQ(group_keys_[at]->rounds.removed_count, 1);
    of_groups_.erase(of_groups_.begin() + static_cast<std::ptrdiff_t>(at));
    group_keys_.erase(group_keys_.begin() + static_cast<std::ptrdiff_t>(at));
  }
  void Round(TestKey& key, std::uint32_t chunk, std::uint64_t iteration) {
    Push(key);
    const auto posted = RunAndTake();
    ASSERT_THAT(Chunks(posted), ElementsAre(chunk));
    EXPECT_EQ(posted[0].header.key, key.index);
    EXPECT_EQ(posted[0].header.iteration, Iteration{iteration});
    Reply(0, chunk, iteration, 4.0f);
    Run();
    EXPECT_EQ(key.parameters[0], 4.0f);
  }

  std::vector<std::unique_ptr<KeyBatch>> of_groups_;
  std::vector<std::unique_ptr<TestKey>> group_keys_;
};

TEST_F(EngineGroupsTest, ChunksHaveTheNumbersOfTheDaemon) {
  Start(1, 4);
  TestKey& of_job = AddKey({0}, 0, {}, 0, /*collective=*/true);
  TestKey& of_group = AddToGroup(3, 5);
  Round(of_group, 5, 1);
  Round(of_job, 0, 1);
  Round(of_group, 5, 2);
  // Expect: numbers of chunks that this rank does not have are no chunks.
  Reply(0, 3, 1, 1.0f);
  Run();
  EXPECT_EQ(lanes_.closed_lanes.size(), 1u);
}

TEST_F(EngineGroupsTest, AHoleIsFilledByALaterKeyThatStartsAtTheFirstIteration) {
  Start(1, 4);
  AddToGroup(0, 0, 2);
  TestKey& stays = AddToGroup(1, 2);
  Round(stays, 2, 1);
  Remove(0);
  TestKey& later = AddToGroup(0, 1);
  Round(later, 1, 1);
  Round(*group_keys_[0], 2, 2);
  EXPECT_EQ(engine_->free_slots(0), 4u);
}

TEST_F(EngineGroupsTest, ALoopOfAddingAndRemovingKeepsOtherKeysAndSlots) {
  Start(1, 2);
  TestKey& of_job = AddKey({0}, 0, {}, 0, /*collective=*/true);
  for (std::uint64_t i = 1; i <= 50; ++i) {
    AddToGroup(0, 1);
    AddToGroup(1, 2);
    Round(*group_keys_[0], 1, 1);
    Remove(0);
    Round(*group_keys_[0], 2, 1);
    Remove(0);
    Round(of_job, 0, i);
  }
  EXPECT_EQ(engine_->free_slots(0), 2u);
}

TEST_F(EngineGroupsTest, ALaneThatReturnsSendsTheKeysOfGroupsAgain) {
  Start(1, 2);
  AddToGroup(0, 0);
  TestKey& stays = AddToGroup(1, 1);
  Remove(0);
  TestKey& waits = *group_keys_[0];
  ASSERT_EQ(&stays, &waits);
  Push(waits);
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre(1));
  transport_.Break(0, transport::TransportError::kReset);
  Run();
  Attach(0);
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre(1));
}

TEST_F(EngineGroupsTest, AHigherClassIsSentBeforeALowerOneThatWaits) {
  Start(1, 2);
  TestKey& low = AddToGroup(0, 0, 4);
  TestKey& middle = AddToGroup(1, 4, 1, 1);
  TestKey& high = AddToGroup(2, 5, 1, 2);
  Push(low);
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre(0, 1));
  Push(middle);
  Push(high);
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre());
  Reply(0, 0, 1, 1.0f);
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre(5));
  Reply(0, 1, 1, 1.0f);
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre(4));
  Reply(0, 5, 1, 1.0f);
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre(2));
}

TEST_F(EngineGroupsTest, RoundsOfEqualKeysAreSentInTheOrderInWhichTheyWereStarted) {
  Start(1, 1);
  TestKey& of_iteration = AddKey({0});
  TestKey& first_added = AddToGroup(0, 1, 2);
  TestKey& second_added = AddToGroup(1, 3, 2);
  Push(second_added);
  std::vector<std::uint32_t> order = Chunks(RunAndTake());
  Push(first_added);
  Push(of_iteration);
  while (order.size() < 5) {
    Reply(0, order.back(), 1, 1.0f);
    const std::vector<std::uint32_t> sent = Chunks(RunAndTake());
    ASSERT_EQ(sent.size(), 1u);
    order.push_back(sent[0]);
  }
  EXPECT_THAT(order, ElementsAre(3, 0, 4, 1, 2));
}

TEST_F(EngineGroupsTest, LowerClassesLeaveSlotsFreeForAHigherOne) {
  yielding_slots_ = 2;
  Start(1, 8);
  TestKey& data = AddToGroup(0, 0, 6, 0);
  TestKey& tensor = AddToGroup(1, 6, 2, 2);
  Push(data);
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre(0, 1));
  Push(tensor);
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre(6, 7));
  // Expect: a credit frees a slot for the lower class, and so does a reply; those of the higher
  // class do not.
  Reply(0, 6, 1, 4.0f);
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre());
  Credit(0, 0, SlotIndex{0});
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre(2));
  Reply(0, 1, 1, 4.0f);
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre(3));
  // Expect: a new lane starts with free slots.
  transport_.Break(0, transport::TransportError::kReset);
  Run();
  Attach(0);
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre(7, 0, 2));
}

TEST_F(EngineGroupsTest, WithoutAHigherClassLowerOnesUseAllSlots) {
  yielding_slots_ = 1;
  Start(1, 4);
  TestKey& data = AddToGroup(0, 0, 4, 1);
  AddToGroup(1, 4, 1, 2);
  Remove(1);
  Push(data);
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre(0, 1, 2, 3));
}

TEST_F(EngineGroupsTest, OneOfTwentyChunksIsOfTheLowestClassThatWaits) {
  Start(1, 1);
  TestKey& low = AddToGroup(0, 0, 3);
  TestKey& high = AddToGroup(1, 3, 45, 2);
  Push(low);
  std::vector<std::size_t> of_low;  // places in the order of sending
  std::vector<std::uint32_t> sent = Chunks(RunAndTake());
  Push(high);
  for (std::size_t place = 0; !sent.empty(); ++place) {
    ASSERT_EQ(sent.size(), 1u);
    if (sent[0] < 3) of_low.push_back(place);
    Reply(0, sent[0], 1, 1.0f);
    sent = Chunks(RunAndTake());
  }
  EXPECT_THAT(of_low, ElementsAre(0, 20, 40));
}

TEST(GroupLayout, TheDaemonMustNumberEveryLane) {
  const LaneLayout layout(256, 2);
  const std::vector<std::uint32_t> bins{1, 0, 1};
  const std::vector<std::uint32_t> firsts{7, 3};
  KeyPlacementView view{.name = "a",
                        .key = KeyIndex{kGroupKeysFirst},
                        .element_count = 3 * 64,
                        .chunk_bins = bins,
                        .first_chunks = firsts};
  const auto keys = layout.AddGroupKeys({&view, 1});
  ASSERT_TRUE(keys.ok()) << keys.status();
  const std::vector<ChunkPlace>& chunks = keys->front().chunks;
  EXPECT_EQ(chunks[0].chunk, ChunkIndex{7});
  EXPECT_EQ(chunks[1].chunk, ChunkIndex{3});
  EXPECT_EQ(chunks[2].chunk, ChunkIndex{8});
  view.first_chunks = {firsts.data(), 1};
  EXPECT_THAT(std::string(layout.AddGroupKeys({&view, 1}).status().message()),
              HasSubstr("numbered key a on only 1 core loops"));
  view.first_chunks = {};
  EXPECT_FALSE(layout.AddGroupKeys({&view, 1}).ok());
  const std::uint32_t too_large[] = {kChunksPerShardMax, 0};
  view.first_chunks = too_large;
  EXPECT_FALSE(layout.AddGroupKeys({&view, 1}).ok());
}

TEST(GroupLayout, PartsBelongToRanksOfTheJob) {
  const LaneLayout layout(256, 1);
  const std::vector<std::uint32_t> bins{0, 0};
  const std::uint32_t first = 0;
  const std::vector<Rank> members{Rank{1}, Rank{3}};
  const KeyPlacementView view{.name = "a",
                              .key = KeyIndex{kGroupKeysFirst},
                              .element_count = 2 * 64,
                              .parts = {.movement = KeyMovement::kGather, .ranks = 2},
                              .chunk_bins = bins,
                              .first_chunks = {&first, 1},
                              .members = members};
  const auto keys = layout.AddGroupKeys({&view, 1});
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(keys->front().chunks[0].sender, Rank{1});
  EXPECT_EQ(keys->front().chunks[1].sender, Rank{3});
}

// A rank that is not a member of the group sees a gap in the numbers of the job's own keys.
TEST(GroupLayout, KeysOfTheJobMayHaveGaps) {
  LaneLayout layout(256, 1);
  const std::vector<std::uint32_t> bins{0};
  const std::uint32_t first = 4;
  KeyPlacementView view{.name = "a", .key = KeyIndex{0}, .element_count = 1, .chunk_bins = bins};
  ASSERT_TRUE(layout.AddKeys({&view, 1}).ok());
  view.key = KeyIndex{1};
  view.first_chunks = {&first, 1};
  const auto after_gap = layout.AddKeys({&view, 1});
  ASSERT_TRUE(after_gap.ok());
  EXPECT_EQ(after_gap->front().chunks[0].chunk, ChunkIndex{4});
  layout.RemoveLast(after_gap->front());
  EXPECT_EQ(layout.key_count(), 1u);
}

}  // namespace
}  // namespace phub::client
