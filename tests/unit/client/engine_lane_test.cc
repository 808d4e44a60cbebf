// Messages that a daemon must not send, and lost lanes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "client/engine.h"
#include "tests/unit/client/engine_fixture.h"

namespace phub::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class EngineBreachTest : public EngineTest {
 protected:
  void SetUp() override {
    Start(2, 2);
    key_ = &AddKey({0, 1, 0, 0});
    Push(*key_);
    Run();  // lane 0: chunks 0 and 1 in flight, 2 waits for a slot; lane 1: chunk 0
  }
  void ExpectFault(LaneFault fault) {
    Run();
    ASSERT_THAT(lanes_.closed_lanes, SizeIs(1));
    EXPECT_EQ(lanes_.closed_lanes[0].lane, 0u);
    EXPECT_EQ(lanes_.closed_lanes[0].fault, fault) << ToString(lanes_.closed_lanes[0].fault);
    EXPECT_EQ(lanes_.closed_lanes[0].connection, connections_[0].get());
    EXPECT_FALSE(transport_.open(0));
    EXPECT_TRUE(transport_.open(1));  // other lanes are not disturbed
    EXPECT_EQ(key_->rounds.complete_count, 0);
  }
  void Deliver(const wire::MessageHeader& header) {
    const std::vector<float> payload(header.payload_bytes / sizeof(float), 1.0f);
    transport_.Deliver(0, header, Bytes(payload));
  }
  TestKey* key_ = nullptr;
};

TEST_F(EngineBreachTest, ReplyOfAnotherIterationFailsTheLane) {
  Deliver(ReplyHeader(0, 2));
  ExpectFault(LaneFault::kIteration);
}

TEST_F(EngineBreachTest, ReplyOfThePastFailsTheLane) {
  Deliver(ReplyHeader(0, 0));
  ExpectFault(LaneFault::kIteration);
}

TEST_F(EngineBreachTest, ShortReplyFailsTheLane) {
  wire::MessageHeader header = ReplyHeader(0, 1);
  header.payload_bytes = kChunkBytes - 4;
  Deliver(header);
  ExpectFault(LaneFault::kPayloadBytes);
}

TEST_F(EngineBreachTest, OversizedReplyFailsTheLane) {
  wire::MessageHeader header = ReplyHeader(0, 1);
  header.payload_bytes = kChunkBytes + 4;
  Deliver(header);
  ExpectFault(LaneFault::kNone);
  EXPECT_EQ(lanes_.closed_lanes[0].protocol_error, transport::ProtocolError::kSlotBytes);
}

TEST_F(EngineBreachTest, ReplyOfAnotherTypeFailsTheLane) {
  wire::MessageHeader header = ReplyHeader(0, 1);
  header.type = numeric::ElementType::kI32;
  Deliver(header);
  ExpectFault(LaneFault::kType);
}

TEST_F(EngineBreachTest, PullFromTheDaemonFailsTheLane) {
  Deliver(FromDaemon(wire::MessageKind::kPull, 0));
  ExpectFault(LaneFault::kUnexpectedKind);
}

TEST_F(EngineBreachTest, SecondReplyToAChunkFindsNoMemory) {
  Deliver(ReplyHeader(0, 1));
  Run();
  key_->parameters[0] = 123.0f;
  Deliver(ReplyHeader(0, 1));
  ExpectFault(LaneFault::kNone);
  EXPECT_EQ(lanes_.closed_lanes[0].protocol_error, transport::ProtocolError::kSlotClosed);
  EXPECT_FLOAT_EQ(key_->parameters[0], 123.0f);
}

TEST_F(EngineBreachTest, SecondReplyInTheSameBurstFailsTheLane) {
  Deliver(ReplyHeader(0, 1));
  Deliver(ReplyHeader(0, 1));  // before the engine saw the first reply: its memory is still open
  ExpectFault(LaneFault::kNotAsked);
}

TEST_F(EngineBreachTest, ReplyToAChunkThatWasNotSentFindsNoMemory) {
  Deliver(ReplyHeader(2, 1));
  ExpectFault(LaneFault::kNone);
  EXPECT_EQ(lanes_.closed_lanes[0].protocol_error, transport::ProtocolError::kSlotClosed);
  EXPECT_FLOAT_EQ(key_->parameters[3 * kChunkElements], -1.0f);
}

TEST_F(EngineBreachTest, ReplyWhoseSlotIsNotItsChunkFailsTheLane) {
  wire::MessageHeader header = ReplyHeader(0, 1);
  header.chunk = ChunkIndex{1};
  Deliver(header);
  ExpectFault(LaneFault::kChunkRange);
}

TEST_F(EngineBreachTest, CreditForAChunkOutOfRangeFailsTheLane) {
  Credit(0, 3, SlotIndex{0});
  ExpectFault(LaneFault::kChunkRange);
}

TEST_F(EngineBreachTest, CreditForASlotOutOfRangeFailsTheLane) {
  Credit(0, 0, SlotIndex{2});
  ExpectFault(LaneFault::kSlotRange);
}

TEST_F(EngineBreachTest, MessageOfAnotherJobFailsTheLane) {
  wire::MessageHeader header = ReplyHeader(0, 1);
  header.incarnation = Incarnation{78};
  Deliver(header);
  ExpectFault(LaneFault::kWrongJob);
}

TEST_F(EngineBreachTest, MessageOfAnotherEpochFailsTheLane) {
  wire::MessageHeader header = ReplyHeader(0, 1);
  header.membership_epoch = MembershipEpoch{2};
  Deliver(header);
  ExpectFault(LaneFault::kWrongJob);
}

TEST_F(EngineBreachTest, RecordFromTheDaemonFailsTheLane) {
  Deliver(FromDaemon(wire::MessageKind::kHyperParameters, 0));
  ExpectFault(LaneFault::kUnexpectedKind);
}

TEST_F(EngineTest, LostLaneIsReportedAndTheOthersGoOn) {
  Start(2, 2);
  TestKey& hit = AddKey({0, 1});
  TestKey& spared = AddKey({1});
  Push(hit);
  Run();
  transport_.Break(0, transport::TransportError::kReset);
  Run();
  ASSERT_THAT(lanes_.closed_lanes, SizeIs(1));
  EXPECT_EQ(lanes_.closed_lanes[0].error, transport::TransportError::kReset);
  Push(spared);
  Run();
  Reply(1, 1, 1, 1.0f);
  Run();
  EXPECT_EQ(spared.rounds.complete_count, 1);
  EXPECT_EQ(hit.rounds.complete_count, 0);
}

TEST_F(EngineTest, ReplacedLaneSendsExactlyTheUnansweredChunksAgain) {
  Start(1, 3);
  TestKey& key = AddKey({0, 0, 0, 0, 0});
  Push(key);
  auto posted = RunAndTake();
  ASSERT_THAT(Chunks(posted), ElementsAre(0, 1, 2));
  Reply(0, 1, 1, 7.0f);                 // answered
  Credit(0, 0, posted[0].header.slot);  // credited only: the daemon may request those bytes again
  ASSERT_THAT(Chunks(RunAndTake()), ElementsAre(3, 4));
  transport_.Break(0, transport::TransportError::kReset);
  Run();
  Attach(0);
  posted = RunAndTake();
  EXPECT_THAT(Chunks(posted), ElementsAre(0, 2, 3));  // as many as the new lane has slots
  for (const auto& one : posted) EXPECT_EQ(one.connection, transport_.connection(1));
  EXPECT_EQ(posted[1].payload,
            reinterpret_cast<const std::byte*>(key.gradients.data()) + 2 * kChunkBytes);
  for (std::uint32_t chunk : {0u, 2u, 3u}) Reply(1, chunk, 1, 7.0f);
  EXPECT_THAT(Chunks(RunAndTake()), ElementsAre(4));
  Reply(1, 4, 1, 7.0f);
  Run();
  EXPECT_EQ(key.rounds.complete_count, 1);
  EXPECT_THAT(key.parameters, ::testing::Each(7.0f));
  EXPECT_EQ(engine_->free_slots(0), 3u);
}

TEST_F(EngineTest, ReportsTheFirstAndTheLastChunkOfEachRound) {
  report_sent_ = true;
  Start(1, 2);
  TestKey& key = AddKey({0, 0, 0, 0}, 0, {.learning_rate = 1.0});
  TestKey& small = AddKey({0});
  SetHyperParameters(key, {.learning_rate = 2.0});  // its record is no chunk
  Push(key);
  ASSERT_THAT(Chunks(RunAndTake()), ElementsAre(0, 1));
  EXPECT_THAT(key.rounds.sent, ElementsAre(false));
  Reply(0, 0, 1, 1.0f);
  ASSERT_THAT(Chunks(RunAndTake()), ElementsAre(2));
  Reply(0, 1, 1, 1.0f);
  ASSERT_THAT(Chunks(RunAndTake()), ElementsAre(3));
  EXPECT_THAT(key.rounds.sent, ElementsAre(false, true));
  // Chunks that are sent again are not reported.
  transport_.Break(0, transport::TransportError::kReset);
  Run();
  Attach(0);
  ASSERT_THAT(Chunks(RunAndTake()), ElementsAre(2, 3));
  EXPECT_THAT(key.rounds.sent, ElementsAre(false, true));
  for (std::uint32_t chunk : {2u, 3u}) Reply(1, chunk, 1, 1.0f);
  Push(small);
  Run();
  EXPECT_THAT(small.rounds.sent, ElementsAre(true));
  Push(key);
  Run();
  EXPECT_THAT(key.rounds.sent, ElementsAre(false, true, false));
}

TEST_F(EngineTest, ReportsNoSentChunksUnlessAsked) {
  Start(1, 2);
  TestKey& key = AddKey({0});
  Push(key);
  Run();
  EXPECT_THAT(key.rounds.sent, IsEmpty());
}

TEST_F(EngineTest, ReplacedLaneHearsOfRecordsAgain) {
  Start(1, 2);
  TestKey& key = AddKey({0}, 0, {.learning_rate = 1.0});
  SetHyperParameters(key, {.learning_rate = 2.0});
  Push(key);
  ASSERT_THAT(RunAndTake(), SizeIs(2));
  transport_.Break(0, transport::TransportError::kPeerClosed);
  Run();
  Attach(0);
  const auto posted = RunAndTake();
  ASSERT_THAT(posted, SizeIs(2));
  EXPECT_EQ(posted[0].header.kind, wire::MessageKind::kHyperParameters);
  EXPECT_EQ(posted[0].header.hyper_version, HyperVersion{2});
  EXPECT_EQ(posted[1].header.kind, wire::MessageKind::kGradient);
}

TEST_F(EngineTest, LaneReplacedBetweenRoundsSendsNothing) {
  Start(1, 2);
  TestKey& key = AddKey({0});
  Push(key);
  Run();
  Reply(0, 0, 1, 1.0f);
  Run();
  transport_.ClearPosted();
  transport_.Break(0, transport::TransportError::kReset);
  Run();
  Attach(0);
  EXPECT_THAT(RunAndTake(), IsEmpty());
  Push(key);
  const auto posted = RunAndTake();
  ASSERT_THAT(posted, SizeIs(1));
  EXPECT_EQ(posted[0].header.iteration, Iteration{2});
}

TEST_F(EngineTest, LateNewsOfTheOldConnectionDoesNotTouchTheNewOne) {
  Start(1, 2);
  TestKey& key = AddKey({0});
  Push(key);
  Run();
  Reply(0, 0, 2, 1.0f);  // a violation: the engine closes the lane
  Reply(0, 0, 1, 9.0f);  // arrives after it, on the closed lane
  Run();
  EXPECT_EQ(key.rounds.complete_count, 0);
  Attach(0);
  Run();
  Reply(1, 0, 1, 3.0f);
  Run();
  EXPECT_EQ(key.rounds.complete_count, 1);
  EXPECT_FLOAT_EQ(key.parameters[0], 3.0f);
}

}  // namespace
}  // namespace phub::client
