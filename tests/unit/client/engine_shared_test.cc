// Lanes whose transport shares memory with the daemon: the memory that each message is sent from,
// and lanes that return over another transport.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "client/engine.h"
#include "tests/unit/client/engine_fixture.h"

namespace phub::client {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const std::byte* GradientsOf(const TestKey& key) {
  return std::as_bytes(std::span(key.gradients)).data();
}
const std::byte* ParametersOf(const TestKey& key) {
  return std::as_bytes(std::span(key.parameters)).data();
}

// transport_ shares memory, tcp_ does not.
class EngineSharedTest : public EngineTest {
 protected:
  static constexpr std::uint8_t kShared = 0;
  static constexpr std::uint8_t kTcp = 1;
  EngineSharedTest() { transports_ = {&transport_, &tcp_}; }
  void ShareGradients(TestKey& key) {
    transport_.Share(std::as_writable_bytes(std::span(key.gradients)), true);
  }
  void ShareParameters(TestKey& key, bool writable) {
    transport_.Share(std::as_writable_bytes(std::span(key.parameters)), writable);
  }
  void PushShared(TestKey& key) {
    Command command = PushCommand(key);
    command.parameters_shared = true;
    Submit(command);
  }
  FakeTransport tcp_;
};

TEST_F(EngineSharedTest, GradientsInSharedMemoryAreSentFromWhereTheyLieWithoutASlot) {
  Start(1, 1);
  TestKey& key = AddKey({0, 0, 0});
  ShareGradients(key);
  Push(key);
  const auto posted = RunAndTake();
  ASSERT_THAT(Chunks(posted), ElementsAre(0, 1, 2));  // a single slot does not limit them
  for (std::size_t i = 0; i < posted.size(); ++i) {
    EXPECT_EQ(posted[i].header.slot, kNoSlot);
    EXPECT_EQ(posted[i].header.payload_bytes, kChunkBytes);
    EXPECT_EQ(posted[i].payload, GradientsOf(key) + i * kChunkBytes);
  }
  EXPECT_EQ(engine_->free_slots(0), 1u);
  EXPECT_EQ(engine_->counters().gradients_in_place, 3u);
  for (std::uint32_t chunk : {0u, 1u, 2u}) Reply(0, chunk, 1, 5.0f);
  Run();
  EXPECT_EQ(key.rounds.complete_count, 1);
  EXPECT_EQ(engine_->free_slots(0), 1u);
}

TEST_F(EngineSharedTest, OtherGradientsAreCopiedOnceIntoTheSlotThatBothMap) {
  Start(1, 2);
  transport_.ShareSlots(2, kChunkBytes);
  TestKey& key = AddKey({0, 0, 0});
  Push(key);
  auto posted = RunAndTake();
  ASSERT_THAT(Chunks(posted), ElementsAre(0, 1));
  for (std::size_t i = 0; i < posted.size(); ++i) {
    std::vector<std::byte>& slot = transport_.slot(posted[i].header.slot);
    EXPECT_EQ(posted[i].payload, slot.data());
    EXPECT_EQ(std::memcmp(slot.data(), GradientsOf(key) + i * kChunkBytes, kChunkBytes), 0);
  }
  EXPECT_EQ(engine_->counters().gradients_copied, 2u);
  Credit(0, 1, posted[1].header.slot);  // folded, so the third chunk gets the slot
  posted = RunAndTake();
  ASSERT_THAT(Chunks(posted), ElementsAre(2));
  EXPECT_EQ(std::memcmp(posted[0].payload, GradientsOf(key) + 2 * kChunkBytes, kChunkBytes), 0);
  for (std::uint32_t chunk : {0u, 1u, 2u}) Reply(0, chunk, 1, 5.0f);
  Run();
  EXPECT_EQ(key.rounds.complete_count, 1);
  EXPECT_EQ(engine_->free_slots(0), 2u);
}

TEST_F(EngineSharedTest, WhatWaitsForSlotsDoesNotHoldBackWhatNeedsNone) {
  Start(1, 1);
  TestKey& elsewhere = AddKey({0, 0}, /*priority=*/9);
  TestKey& in_place = AddKey({0, 0});
  ShareGradients(in_place);
  Push(elsewhere);
  Push(in_place);
  // Priority first, then those that can be sent.
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre(0, 2, 3));
  Reply(0, 0, 1, 1.0f);
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre(1));
}

TEST_F(EngineSharedTest, FullTransportUndoesBothWaysAndCopiesNothingTwice) {
  Start(1, 4);
  transport_.ShareSlots(4, kChunkBytes);
  transport_.SetPostLimit(2);
  TestKey& copied = AddKey({0, 0, 0, 0}, 1);
  TestKey& in_place = AddKey({0, 0, 0});
  ShareGradients(in_place);
  Push(copied);
  Push(in_place);
  // The first burst collects all messages, and the transport accepts two. The copies for the others
  // stay.
  ASSERT_TRUE(engine_->RunOnce());
  ASSERT_THAT(transport_.posted(), SizeIs(2));
  copied.gradients.assign(copied.gradients.size(), -7.0f);  // no one reads it any more
  const auto posted = RunAndTake();
  EXPECT_THAT(Chunks(posted), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  for (std::size_t i = 0; i < 4; ++i) {
    float first = 0.0f;
    std::memcpy(&first, posted[i].bytes.data(), sizeof first);
    EXPECT_FLOAT_EQ(first, static_cast<float>(i * kChunkElements));
  }
  EXPECT_EQ(engine_->free_slots(0), 0u);
  for (std::uint32_t chunk = 0; chunk < 7; ++chunk) Reply(0, chunk, 1, 2.0f);
  Run();
  EXPECT_EQ(copied.rounds.complete_count, 1);
  EXPECT_EQ(in_place.rounds.complete_count, 1);
  EXPECT_EQ(engine_->free_slots(0), 4u);
}

TEST_F(EngineSharedTest, SlotIsCopiedAnewForAnotherRound) {
  Start(1, 1);
  transport_.ShareSlots(1, kChunkBytes);
  TestKey& key = AddKey({0});
  for (std::uint64_t iteration = 1; iteration <= 3; ++iteration) {
    key.gradients.assign(key.gradients.size(), static_cast<float>(iteration));
    Push(key);
    const auto posted = RunAndTake();
    ASSERT_THAT(posted, SizeIs(1));
    EXPECT_EQ(std::memcmp(posted[0].payload, GradientsOf(key), kChunkBytes), 0);
    Reply(0, 0, iteration, 1.0f);
    Run();
  }
}

TEST_F(EngineSharedTest, DaemonIsToldWhereThisRanksOwnParametersAre) {
  Start(1, 2);
  TestKey& shared = AddKey({0, 0});
  TestKey& elsewhere = AddKey({0});
  ShareParameters(shared, true);
  Push(shared);
  Push(elsewhere);
  const auto posted = RunAndTake();
  ASSERT_THAT(posted, SizeIs(2));
  const SharedAddress first =
      transport_.AddressOf(transport_.connection(0), ParametersOf(shared), kChunkBytes);
  EXPECT_NE(first, SharedAddress{});
  EXPECT_EQ(posted[0].header.reply_address, first);
  EXPECT_EQ(posted[1].header.reply_address, SharedAddress{first.value + kChunkBytes});
  EXPECT_FALSE(transport_.landing(0, 0).read_only);
  Reply(0, 0, 1, 1.0f);
  Reply(0, 1, 1, 1.0f);
  const auto rest = RunAndTake();
  ASSERT_THAT(rest, SizeIs(1));
  EXPECT_EQ(rest[0].header.reply_address, SharedAddress{});
}

TEST_F(EngineSharedTest, SharedParametersAreOnlyAnnounced) {
  Start(1, 2);
  TestKey& key = AddKey({0, 0});
  ShareParameters(key, false);
  PushShared(key);
  const auto posted = RunAndTake();
  ASSERT_THAT(posted, SizeIs(2));
  EXPECT_EQ(posted[0].header.reply_address, SharedAddress{});
  EXPECT_TRUE(transport_.landing(0, 0).read_only);
  EXPECT_EQ(transport_.landing(0, 0).data, ParametersOf(key));
  transport_.Deliver(0, ReplyHeader(0, 1), {ParametersOf(key), kChunkBytes});
  transport_.Deliver(0, ReplyHeader(1, 1), {ParametersOf(key) + kChunkBytes, kChunkBytes});
  Run();
  EXPECT_EQ(key.rounds.complete_count, 1);
}

TEST_F(EngineSharedTest, PayloadThatWouldHaveToBeWrittenIntoSharedParametersFailsTheLane) {
  Start(1, 2);
  TestKey& key = AddKey({0});
  ShareParameters(key, false);
  PushShared(key);
  Run();
  Reply(0, 0, 1, 4.0f);
  Run();
  ASSERT_THAT(lanes_.closed_lanes, SizeIs(1));
  EXPECT_EQ(lanes_.closed_lanes[0].protocol_error, transport::ProtocolError::kSlotReadOnly);
  EXPECT_THAT(key.parameters, Each(-1.0f));
}

TEST_F(EngineSharedTest, RootSendsSharedParametersThroughASlotNotInPlace) {
  Start(1, 2);
  transport_.ShareSlots(2, kChunkBytes);
  TestKey& key = AddKey({0});
  TestKey& other = AddKey({0});
  ShareParameters(key, false);
  // From its own parameters, and from values in the read-only region of another key.
  for (TestKey* pushed : {&key, &other}) {
    Command command = PushCommand(*pushed);
    command.operation = wire::RoundOperation::kAssign;
    command.gradients = ParametersOf(key);
    command.parameters_shared = pushed == &key;
    Submit(command);
  }
  const auto posted = RunAndTake();
  ASSERT_THAT(posted, SizeIs(2));
  for (const auto& one : posted) {
    EXPECT_NE(one.header.slot, kNoSlot);
    EXPECT_EQ(one.payload, transport_.slot(one.header.slot).data());
  }
}

TEST_F(EngineSharedTest, LostSharedLaneThatComesBackOverTcpSendsTheRestIntoSlots) {
  Start(1, 2);
  TestKey& key = AddKey({0, 0, 0});
  ShareGradients(key);
  ShareParameters(key, true);
  Push(key);
  ASSERT_THAT(RunAndTake(), SizeIs(3));
  Reply(0, 1, 1, 6.0f);
  Run();
  transport_.Break(0, transport::TransportError::kPeerClosed);
  Run();
  Attach(0, kTcp);
  Run();
  auto posted = tcp_.TakePosted();
  ASSERT_THAT(Chunks(posted), ElementsAre(0, 2));
  for (const auto& one : posted) {
    EXPECT_LT(one.header.slot.value, 2u);
    EXPECT_EQ(one.header.reply_address, SharedAddress{});
    EXPECT_EQ(one.payload, GradientsOf(key) + one.header.chunk.value * kChunkBytes);
  }
  const std::vector<float> payload(kChunkElements, 6.0f);
  tcp_.Deliver(0, ReplyHeader(0, 1), Bytes(payload));
  tcp_.Deliver(0, ReplyHeader(2, 1), Bytes(payload));
  Run();
  EXPECT_EQ(key.rounds.complete_count, 1);
  EXPECT_THAT(key.parameters, Each(6.0f));
  EXPECT_EQ(engine_->free_slots(0), 2u);
}

TEST_F(EngineSharedTest, LaneThatComesBackOverSharedMemorySendsTheRestInPlace) {
  config_ = {.incarnation = Incarnation{77},
             .membership_epoch = MembershipEpoch{3},
             .slots_per_lane = 1,
             .lane_count = 1};
  layout_ = std::make_unique<LaneLayout>(kChunkBytes, 1);
  engine_ = std::make_unique<Engine>(config_, clock_, transports_, lanes_);
  Attach(0, kTcp);
  TestKey& key = AddKey({0, 0, 0});
  ShareGradients(key);
  Push(key);
  Run();
  auto posted = tcp_.TakePosted();
  ASSERT_THAT(Chunks(posted), ElementsAre(0));
  // Credited: the next chunk got the slot, and the daemon requests both again on the new lane.
  wire::MessageHeader credit = FromDaemon(wire::MessageKind::kCredit, 0);
  credit.slot = posted[0].header.slot;
  tcp_.Deliver(0, credit, {});
  Run();
  ASSERT_THAT(Chunks(tcp_.TakePosted()), ElementsAre(1));
  tcp_.Break(0, transport::TransportError::kReset);
  Run();
  Attach(0, kShared);
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre(0, 1, 2));
  EXPECT_THAT(tcp_.posted(), IsEmpty());
  EXPECT_EQ(engine_->free_slots(0), 1u);
  for (std::uint32_t chunk : {0u, 1u, 2u}) Reply(0, chunk, 1, 5.0f);
  Run();
  EXPECT_EQ(key.rounds.complete_count, 1);
}

TEST_F(EngineSharedTest, SharedParametersOverALaneThatDoesNotShareThemAreNotWritten) {
  Start(1, 2);
  TestKey& key = AddKey({0, 0});
  ShareParameters(key, false);
  PushShared(key);
  Run();
  transport_.Break(0, transport::TransportError::kReset);
  Run();
  Attach(0, kTcp);
  Run();
  ASSERT_THAT(Chunks(tcp_.TakePosted()), ElementsAre(0, 1));
  key.parameters.assign(key.parameters.size(), 3.0f);  // the daemon, through its own mapping
  const std::vector<float> payload(kChunkElements, 9.0f);
  tcp_.Deliver(0, ReplyHeader(0, 1), Bytes(payload));
  tcp_.Deliver(0, ReplyHeader(1, 1), Bytes(payload));
  Run();
  EXPECT_EQ(key.rounds.complete_count, 1);
  EXPECT_THAT(key.parameters, Each(3.0f));
}

}  // namespace
}  // namespace phub::client
