#include "client/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/client/engine_fixture.h"

namespace phub::client {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(EngineTest, PushSendsEveryChunkFromTheCallersMemory) {
  Start(2, 4);
  TestKey& key = AddKey({0, 1, 0});
  Push(key);
  const auto posted = RunAndTake();
  ASSERT_THAT(posted, SizeIs(3));
  for (const auto& one : posted) {
    EXPECT_EQ(one.header.kind, wire::MessageKind::kGradient);
    EXPECT_EQ(one.header.incarnation, config_.incarnation);
    EXPECT_EQ(one.header.membership_epoch, config_.membership_epoch);
    EXPECT_EQ(one.header.iteration, Iteration{1});
    EXPECT_EQ(one.header.hyper_version, HyperVersion{1});
    EXPECT_EQ(one.header.payload_bytes, kChunkBytes);
    EXPECT_LT(one.header.slot.value, 4u);
  }
  const auto* base = reinterpret_cast<const std::byte*>(key.gradients.data());
  EXPECT_EQ(posted[0].payload, base);                    // lane 0, chunk 0
  EXPECT_EQ(posted[1].payload, base + 2 * kChunkBytes);  // lane 0, chunk 1: the key's third chunk
  EXPECT_EQ(posted[2].payload, base + kChunkBytes);      // lane 1, chunk 0: the key's second chunk
}

TEST_F(EngineTest, RoundIsCompleteWithItsLastReplyInTheCallersMemory) {
  Start(2, 4);
  TestKey& key = AddKey({0, 1, 0});
  Push(key);
  Run();
  Reply(0, 1, 1, 30.0f);
  Reply(1, 0, 1, 20.0f);
  Run();
  EXPECT_EQ(key.rounds.complete_count, 0);
  Reply(0, 0, 1, 10.0f);
  Run();
  EXPECT_EQ(key.rounds.complete_count, 1);
  EXPECT_EQ(key.rounds.last_ticket, key.ticket);
  EXPECT_EQ(key.rounds.last_iteration, Iteration{1});
  EXPECT_FLOAT_EQ(key.parameters[0], 10.0f);
  EXPECT_FLOAT_EQ(key.parameters[kChunkElements], 20.0f);
  EXPECT_FLOAT_EQ(key.parameters[2 * kChunkElements], 30.0f);
  EXPECT_EQ(engine_->free_slots(0), 4u);
  EXPECT_EQ(engine_->free_slots(1), 4u);
}

TEST_F(EngineTest, NextRoundIsTheNextIteration) {
  Start(1, 1);
  TestKey& key = AddKey({0});
  for (std::uint64_t iteration = 1; iteration <= 5; ++iteration) {
    Push(key);
    const auto posted = RunAndTake();
    ASSERT_THAT(posted, SizeIs(1));
    EXPECT_EQ(posted[0].header.iteration, Iteration{iteration});
    Reply(0, 0, iteration, static_cast<float>(iteration));
    Run();
    EXPECT_EQ(key.rounds.last_iteration, Iteration{iteration});
  }
}

TEST_F(EngineTest, NoMoreChunksAreUnderWayThanThereAreSlots) {
  Start(1, 2);
  TestKey& key = AddKey({0, 0, 0, 0, 0});
  Push(key);
  auto posted = RunAndTake();
  EXPECT_THAT(Chunks(posted), ElementsAre(0, 1));
  EXPECT_NE(posted[0].header.slot, posted[1].header.slot);
  const SlotIndex slot_of_1 = posted[1].header.slot;
  Reply(0, 1, 1, 1.0f);
  posted = RunAndTake();
  EXPECT_THAT(Chunks(posted), ElementsAre(2));
  EXPECT_EQ(posted[0].header.slot, slot_of_1);
}

TEST_F(EngineTest, CreditFreesTheSlotAndTheReplyAfterItFreesNothing) {
  Start(1, 1);
  TestKey& key = AddKey({0, 0, 0});
  Push(key);
  auto posted = RunAndTake();
  ASSERT_THAT(Chunks(posted), ElementsAre(0));
  Credit(0, 0, posted[0].header.slot);
  posted = RunAndTake();
  ASSERT_THAT(Chunks(posted), ElementsAre(1));  // holds chunk 0's former slot
  Reply(0, 0, 1, 1.0f);                         // must not free chunk 1's slot
  EXPECT_THAT(RunAndTake(), IsEmpty());
  EXPECT_EQ(engine_->free_slots(0), 0u);
  Reply(0, 1, 1, 1.0f);
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre(2));
  Reply(0, 2, 1, 1.0f);
  Run();
  EXPECT_EQ(key.rounds.complete_count, 1);
  EXPECT_EQ(engine_->free_slots(0), 1u);
}

TEST_F(EngineTest, CreditAfterTheReplyIsIgnored) {
  Start(1, 1);
  TestKey& key = AddKey({0, 0});
  Push(key);
  const SlotIndex slot = RunAndTake().at(0).header.slot;
  Reply(0, 0, 1, 1.0f);
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre(1));
  Credit(0, 0, slot);  // chunk 1 has the slot now
  Run();
  EXPECT_EQ(engine_->free_slots(0), 0u);
  EXPECT_EQ(engine_->counters().credits_late, 1u);
  EXPECT_THAT(lanes_.closed_lanes, IsEmpty());
}

TEST_F(EngineTest, FullTransportLosesNothingAndKeepsTheOrder) {
  Start(1, 8);
  transport_.SetPostLimit(2);
  TestKey& key = AddKey({0, 0, 0, 0, 0}, 0, {.learning_rate = 0.1});
  SetHyperParameters(key, {.learning_rate = 0.2});
  Push(key);
  const auto posted = RunAndTake();
  EXPECT_THAT(Chunks(posted), ElementsAre(0, 1, 2, 3, 4));
  ASSERT_THAT(posted, SizeIs(6));  // the record once
  EXPECT_EQ(posted[0].header.kind, wire::MessageKind::kHyperParameters);
  EXPECT_EQ(engine_->free_slots(0), 3u);
}

TEST_F(EngineTest, RecordGoesAheadOfTheFirstGradientThatNamesItOnEveryLaneOnce) {
  Start(2, 8);
  TestKey& key = AddKey({0, 1, 0}, 0, {.learning_rate = 0.1});
  Push(key);
  for (const auto& one : RunAndTake()) EXPECT_EQ(one.header.kind, wire::MessageKind::kGradient);
  for (std::uint32_t chunk : {0u, 1u}) Reply(0, chunk, 1, 1.0f);
  Reply(1, 0, 1, 1.0f);
  Run();
  SetHyperParameters(key, {.learning_rate = 0.05});
  Push(key);
  const auto posted = RunAndTake();
  ASSERT_THAT(posted, SizeIs(5));
  EXPECT_EQ(posted[0].header.kind, wire::MessageKind::kHyperParameters);  // lane 0
  EXPECT_EQ(posted[3].header.kind, wire::MessageKind::kHyperParameters);  // lane 1
  wire::HyperParameters values;
  ASSERT_TRUE(wire::DecodeHyperParameters(posted[0].bytes, values));
  EXPECT_EQ(values.learning_rate, 0.05);
  EXPECT_EQ(posted[0].header.key, key.index);
  for (const auto& one : posted) EXPECT_EQ(one.header.hyper_version, HyperVersion{2});
  // The same values make no new record.
  for (std::uint32_t chunk : {0u, 1u}) Reply(0, chunk, 2, 1.0f);
  Reply(1, 0, 2, 1.0f);
  Run();
  SetHyperParameters(key, {.learning_rate = 0.05});
  Push(key);
  const auto third = RunAndTake();
  ASSERT_THAT(third, SizeIs(3));
  for (const auto& one : third) EXPECT_EQ(one.header.hyper_version, HyperVersion{2});
}

TEST_F(EngineTest, HigherPriorityAndEarlierKeysAreSentFirst) {
  Start(1, 1);
  TestKey& filler = AddKey({0});
  TestKey& first = AddKey({0, 0});
  TestKey& second = AddKey({0});
  TestKey& urgent = AddKey({0}, 5);
  Push(filler);
  ASSERT_THAT(Chunks(RunAndTake()), ElementsAre(0));  // takes the only slot
  Push(second);
  Push(first);
  Push(urgent);
  std::vector<std::uint32_t> order;
  std::uint32_t under_way = 0;
  for (int i = 0; i < 4; ++i) {
    Reply(0, under_way, 1, 1.0f);
    const auto chunks = Chunks(RunAndTake());
    ASSERT_THAT(chunks, SizeIs(1));
    under_way = chunks[0];
    order.push_back(under_way);
  }
  // Chunks on the lane: filler 0, first 1 and 2, second 3, urgent 4.
  EXPECT_THAT(order, ElementsAre(4, 1, 2, 3));
}

TEST_F(EngineTest, MoreUrgentKeyOvertakesBetweenTwoChunks) {
  Start(1, 1);
  TestKey& large = AddKey({0, 0, 0});
  TestKey& urgent = AddKey({0}, 1);
  Push(large);
  ASSERT_THAT(Chunks(RunAndTake()), ElementsAre(0));
  Push(urgent);
  Reply(0, 0, 1, 1.0f);
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre(3));
}

TEST_F(EngineTest, AssignSendsThePayloadOfTheRootOnly) {
  Start(1, 4);
  TestKey& key = AddKey({0, 0});
  Command command = PushCommand(key);
  command.operation = wire::RoundOperation::kAssign;
  command.root = Rank{2};
  command.gradients = nullptr;
  Submit(command);
  const auto posted = RunAndTake();
  ASSERT_THAT(posted, SizeIs(2));
  for (const auto& one : posted) {
    EXPECT_EQ(one.header.operation, wire::RoundOperation::kAssign);
    EXPECT_EQ(one.header.root, Rank{2});
    EXPECT_EQ(one.header.payload_bytes, 0u);
    EXPECT_THAT(one.bytes, IsEmpty());
  }
  Reply(0, 0, 1, 4.0f);
  Reply(0, 1, 1, 5.0f);
  Run();
  EXPECT_EQ(key.rounds.complete_count, 1);
  EXPECT_FLOAT_EQ(key.parameters[0], 4.0f);
}

TEST_F(EngineTest, LandingIsOpenExactlyWhileAChunkIsUnderWay) {
  Start(1, 1);
  TestKey& key = AddKey({0, 0});
  Run();
  EXPECT_EQ(transport_.landing(0, 0).data, nullptr);
  Push(key);
  Run();
  EXPECT_EQ(transport_.landing(0, 0).data, reinterpret_cast<std::byte*>(key.parameters.data()));
  EXPECT_EQ(transport_.landing(0, 0).bytes_max, kChunkBytes);
  EXPECT_EQ(transport_.landing(0, 1).data, nullptr);  // not sent yet, since there is no slot
  Reply(0, 0, 1, 1.0f);
  Run();
  EXPECT_EQ(transport_.landing(0, 0).data, nullptr);
}

TEST_F(EngineTest, KeysAddedLaterKeepWhatIsUnderWay) {
  Start(1, 2);
  TestKey& early = AddKey({0});
  Push(early);
  Run();
  AddKey({0, 0, 0});
  Run();
  Reply(0, 0, 1, 8.0f);
  Run();
  EXPECT_EQ(early.rounds.complete_count, 1);
  EXPECT_FLOAT_EQ(early.parameters[0], 8.0f);
}

TEST_F(EngineTest, PushBeforeTheLaneIsThereIsSentWhenItIs) {
  config_ = {.incarnation = Incarnation{1}, .slots_per_lane = 2, .lane_count = 1};
  layout_ = std::make_unique<LaneLayout>(kChunkBytes, 1);
  engine_ = std::make_unique<Engine>(config_, clock_, transports_, lanes_);
  TestKey& key = AddKey({0});
  Push(key);
  EXPECT_THAT(RunAndTake(), IsEmpty());
  Attach(0);
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre(0));
}

TEST_F(EngineTest, ShortLastChunkIsSentAndReceivedShort) {
  Start(1, 2);
  const std::vector<std::uint32_t> cores{0, 0};
  const KeyPlacementView view{.name = "short",
                              .key = KeyIndex{0},
                              .element_count = kChunkElements + 2,
                              .chunk_bins = cores};
  auto layouts = layout_->AddKeys({&view, 1});
  ASSERT_TRUE(layouts.ok());
  KeyBatch batch;
  RecordingRounds rounds;
  batch.keys.push_back({.layout = layouts->front(), .listener = &rounds});
  Submit({.kind = Command::Kind::kAddKeys, .batch = &batch});
  std::vector<float> gradients(kChunkElements + 2, 1.0f);
  std::vector<float> parameters(kChunkElements + 3, -1.0f);
  Submit({.kind = Command::Kind::kPush,
          .ticket = 1,
          .gradients = std::as_bytes(std::span(gradients)).data(),
          .parameters = std::as_writable_bytes(std::span(parameters)).data()});
  const auto posted = RunAndTake();
  ASSERT_THAT(posted, SizeIs(2));
  EXPECT_EQ(posted[1].header.payload_bytes, 8u);
  Reply(0, 0, 1, 1.0f);
  wire::MessageHeader header = ReplyHeader(1, 1);
  header.payload_bytes = 8;
  transport_.Deliver(0, header, Bytes({2.0f, 2.0f}));
  Run();
  EXPECT_EQ(rounds.complete_count, 1);
  EXPECT_FLOAT_EQ(parameters[kChunkElements + 1], 2.0f);
  EXPECT_FLOAT_EQ(parameters[kChunkElements + 2], -1.0f);
}

TEST_F(EngineTest, CancelBeforeAnythingWasSentWithdrawsTheRound) {
  Start(1, 1);
  TestKey& filler = AddKey({0});
  TestKey& key = AddKey({0, 0}, 0, {.learning_rate = 1.0});
  Push(filler);
  Run();
  SetHyperParameters(key, {.learning_rate = 2.0});
  Push(key);
  Run();
  Submit({.kind = Command::Kind::kCancel, .key = key.index, .ticket = key.ticket});
  Run();
  EXPECT_THAT(key.rounds.cancels, ElementsAre(std::pair{std::uint64_t{1}, true}));
  transport_.ClearPosted();
  Reply(0, 0, 1, 1.0f);
  EXPECT_THAT(RunAndTake(), IsEmpty());
  // The next push is iteration 1, and its record has the number of the cancelled push's record.
  SetHyperParameters(key, {.learning_rate = 3.0});
  Push(key);
  const auto posted = RunAndTake();
  ASSERT_THAT(posted, SizeIs(2));
  EXPECT_EQ(posted[0].header.hyper_version, HyperVersion{2});
  wire::HyperParameters values;
  ASSERT_TRUE(wire::DecodeHyperParameters(posted[0].bytes, values));
  EXPECT_EQ(values.learning_rate, 3.0);
  EXPECT_EQ(posted[1].header.iteration, Iteration{1});
}

TEST_F(EngineTest, CancelOfWhatIsUnderWayOrCompleteIsRefused) {
  Start(1, 1);
  TestKey& key = AddKey({0, 0});
  Push(key);
  Run();
  const Command cancel{.kind = Command::Kind::kCancel, .key = key.index, .ticket = key.ticket};
  Submit(cancel);
  Run();
  Reply(0, 0, 1, 1.0f);
  Run();
  Reply(0, 1, 1, 1.0f);
  Run();
  EXPECT_EQ(key.rounds.complete_count, 1);
  Submit(cancel);
  Run();
  EXPECT_THAT(key.rounds.cancels, Each(std::pair{std::uint64_t{1}, false}));
  EXPECT_THAT(key.rounds.cancels, SizeIs(2));
}

TEST_F(EngineTest, StopClosesEveryLaneBeforeItSaysSo) {
  Start(2, 1);
  TestKey& key = AddKey({0, 1});
  Push(key);
  Run();
  Submit({.kind = Command::Kind::kStop});
  Run();
  EXPECT_EQ(lanes_.stopped, 1);
  EXPECT_THAT(lanes_.closed_lanes, SizeIs(2));
  EXPECT_FALSE(transport_.open(0));
  EXPECT_FALSE(transport_.open(1));
  // The engine ignores pushes from now on.
  transport_.ClearPosted();
  Push(key);
  Run();
  EXPECT_THAT(transport_.posted(), IsEmpty());
  EXPECT_EQ(key.rounds.complete_count, 0);
}

}  // namespace
}  // namespace phub::client
