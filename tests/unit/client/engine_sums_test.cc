// Rounds that an aggregator sums: announcements, positions, and changes to tcp and back.
#include <functional>
#include <limits>

#include "tests/unit/client/engine_sums_fixture.h"

namespace phub::client {
namespace {

TEST_F(EngineSumsTest, RoundsAreAnnouncedWithoutSlotsOnceAStreamIsOpen) {
  StartSums();
  TestKey& key = AddKey({0, 0, 0});
  Push(key);
  EXPECT_EQ(Kinds(RunAndTake()), Numbers{kPushed});  // one slot
  OpenStream(Terms());
  const auto posted = RunAndTake();
  EXPECT_EQ(Kinds(posted), (Numbers{kAnnounced, kAnnounced}));
  EXPECT_EQ(posted[0].header.chunk.value, 1u);
  EXPECT_EQ(posted[0].header.slot.value, kLease);
  EXPECT_EQ(posted[0].header.iteration.value, 1u);
  ASSERT_EQ(posted[0].bytes.size(), kBlocks);
  for (std::uint32_t block = 0; block < kBlocks; ++block)
    EXPECT_EQ(posted[0].bytes[block], std::byte{aggregation::ExponentOf(BlockOf(key, 1, block))});
  for (std::uint32_t chunk = 0; chunk < 3; ++chunk) Reply(0, chunk, 1, 7.0f);
  Run();
  EXPECT_EQ(key.rounds.complete_count, 1);
  Push(key);
  EXPECT_EQ(Kinds(RunAndTake()), (Numbers{kAnnounced, kAnnounced, kAnnounced}));
  EXPECT_EQ(engine_->free_slots(0), 1u);
  EXPECT_TRUE(lanes_.closed_lanes.empty());
}

TEST_F(EngineSumsTest, AnAssignmentSendsTheBlocksAsIntegers) {
  StartSums();
  TestKey& key = AddKey({0, 0});
  OpenStream(Terms());
  Push(key);
  Run();
  const std::vector<std::uint8_t> exponents = {140, 141, 142};
  Assign(1, 1, 3, exponents);
  Run();
  const auto arrived = Datagrams(kBlocks);
  ASSERT_EQ(arrived.size(), kBlocks);
  for (std::uint32_t block = 0; block < kBlocks; ++block) {
    const Arrived& one = arrived.at(1 * kBlocks + block);  // position 3 is at place 1
    EXPECT_EQ(one.packet.kind, PHUB_PACKET_PAYLOAD);
    EXPECT_EQ(one.packet.phase, 1u);
    EXPECT_EQ(one.packet.exponent, exponents[block]);
    const std::span<const float> values = BlockOf(key, 1, block);
    std::vector<std::int32_t> expected(values.size());
    aggregation::ToFixed(values, exponents[block], kRanks, expected);
    EXPECT_EQ(one.integers, expected);
  }
  EXPECT_NE(engine_->NextTimer(), std::numeric_limits<TimeNs>::max());  // it will ask again
  Reply(0, 1, 1, 7.0f);
  Reply(0, 0, 1, 7.0f);
  Run();
  EXPECT_EQ(key.rounds.complete_count, 1);
}

TEST_F(EngineSumsTest, AChunkIsPushedIfTheCoreLoopAsksForIt) {
  StartSums();
  TestKey& key = AddKey({0, 0});
  OpenStream(Terms());
  Push(key);
  EXPECT_EQ(Kinds(RunAndTake()), (Numbers{kAnnounced, kAnnounced}));
  UseTcp(1, 1);
  const auto posted = RunAndTake();
  ASSERT_EQ(Kinds(posted), Numbers{kPushed});
  EXPECT_EQ(posted[0].header.chunk.value, 1u);
  EXPECT_EQ(posted[0].header.slot.value, 0u);
  EXPECT_EQ(posted[0].bytes.size(), kChunkBytes);
  UseTcp(1, 1);  // again, which changes nothing
  EXPECT_TRUE(RunAndTake().empty());
  Reply(0, 0, 1, 7.0f);
  Reply(0, 1, 1, 7.0f);
  Run();
  EXPECT_EQ(key.rounds.complete_count, 1);
  EXPECT_EQ(engine_->free_slots(0), 1u);
}

TEST_F(EngineSumsTest, WhatIsNotSummedWhenTheStreamEndsIsPushed) {
  StartSums(/*slots=*/4);
  TestKey& key = AddKey({0, 0, 0});
  OpenStream(Terms());
  Push(key);
  Run();
  Assign(1, 1, 0, {150, 150, 150});
  Reply(0, 2, 1, 7.0f);
  Run();
  Datagrams(kBlocks);
  transport_.TakePosted();
  CloseStream();
  EXPECT_EQ(Chunks(RunAndTake()), (Numbers{0, 1}));
  Reply(0, 0, 1, 7.0f);
  Reply(0, 1, 1, 7.0f);
  Run();
  EXPECT_EQ(key.rounds.complete_count, 1);
  Push(key);
  EXPECT_EQ(Chunks(RunAndTake()), (Numbers{0, 1, 2}));
}

TEST_F(EngineSumsTest, ANewLaneAnnouncesAgainAndPushesAgain) {
  StartSums(/*slots=*/4);
  TestKey& key = AddKey({0, 0, 0});
  OpenStream(Terms());
  Push(key);
  Run();
  UseTcp(2, 1);
  Assign(0, 1, 0, {150, 150, 150});
  Run();
  transport_.TakePosted();
  transport_.Break(0, transport::TransportError::kReset);
  Run();
  Attach(0);
  EXPECT_EQ(Kinds(RunAndTake()), (Numbers{kAnnounced, kAnnounced, kPushed}));
  OpenStream(Terms(), 1);
  Assign(0, 1, 0, {150, 150, 150}, 1);  // the core loop says it again
  EXPECT_TRUE(RunAndTake().empty());
  EXPECT_EQ(Datagrams(kBlocks).size(), kBlocks);
  for (std::uint32_t chunk = 0; chunk < 3; ++chunk) Reply(1, chunk, 1, 7.0f);
  Run();
  EXPECT_EQ(key.rounds.complete_count, 1);
}

TEST_F(EngineSumsTest, WhatWasPushedBeforeTheStreamIsPushedAgainOnANewLane) {
  StartSums(/*slots=*/4);
  TestKey& key = AddKey({0, 0});
  Push(key);
  EXPECT_EQ(Kinds(RunAndTake()), (Numbers{kPushed, kPushed}));
  OpenStream(Terms());
  Run();
  transport_.Break(0, transport::TransportError::kReset);
  Run();
  Attach(0);
  EXPECT_EQ(Kinds(RunAndTake()), (Numbers{kPushed, kPushed}));
}

TEST_F(EngineSumsTest, ARoundThatIsWithdrawnWasNeverAnnounced) {
  StartSums();
  TestKey& key = AddKey({0});
  OpenStream(Terms());
  Run();
  transport_.SetPostLimit(0);
  Push(key);
  Run();
  Submit(CancelCommand(key));
  Run();
  ASSERT_EQ(key.rounds.cancels.size(), 1u);
  EXPECT_TRUE(key.rounds.cancels[0].second);
  transport_.SetPostLimit(SIZE_MAX);
  Push(key);
  const auto posted = RunAndTake();
  EXPECT_EQ(Kinds(posted), Numbers{kAnnounced});
  EXPECT_EQ(posted[0].header.iteration.value, 1u);
}

TEST_F(EngineSumsTest, OtherRoundsGoOverTcp) {
  StartSums(/*slots=*/4);
  TestKey& summed = AddKey({0});
  TestKey& collective = AddKey({0}, 0, {}, 0, /*collective=*/true);
  OpenStream(Terms());
  Command broadcast = PushCommand(summed);
  broadcast.operation = wire::RoundOperation::kAssign;
  Submit(broadcast);
  Push(collective);
  EXPECT_EQ(Kinds(RunAndTake()), (Numbers{kPushed, kPushed}));
  Reply(0, 0, 1, 7.0f);
  Run();
  Push(summed);
  EXPECT_EQ(Kinds(RunAndTake()), Numbers{kAnnounced});
}

TEST_F(EngineSumsTest, AnnouncementsWaitForRoomInTheTransport) {
  StartSums();
  TestKey& key = AddKey({0, 0, 0});
  OpenStream(Terms());
  Run();
  transport_.SetPostLimit(2);
  Push(key);
  engine_->RunOnce();
  EXPECT_EQ(Kinds(transport_.TakePosted()), (Numbers{kAnnounced, kAnnounced}));
  Run();
  const auto posted = transport_.TakePosted();
  ASSERT_EQ(Kinds(posted), Numbers{kAnnounced});
  EXPECT_EQ(posted[0].header.chunk.value, 2u);
}

TEST_F(EngineSumsTest, AMessageThatCannotBeClosesTheLane) {
  struct Case {
    const char* name;
    LaneFault fault;
    std::function<void(EngineSumsTest&)> send;
  };
  const auto terms = [](auto change) {
    return [change](EngineSumsTest& test) {
      aggregation::StreamTerms changed = test.Terms(kLease + 1);
      change(changed);
      test.OpenStream(changed);
    };
  };
  using Terms = aggregation::StreamTerms;
  const Case cases[] = {
      {"ranks", LaneFault::kStream, terms([](Terms& t) { t.worker_count = 3; })},
      {"block", LaneFault::kStream, terms([](Terms& t) { t.count_max = 25; })},
      {"geometry", LaneFault::kStream, terms([](Terms& t) { t.geometry.positions = 4; })},
      {"garbage", LaneFault::kStream,
       [](EngineSumsTest& test) {
         test.transport_.Deliver(0, test.StreamHeader(MessageKind::kStreamIs, 0),
                                 std::vector<std::byte>(9));
       }},
      {"chunk", LaneFault::kChunkRange,
       [](EngineSumsTest& test) {
         test.Assign(9, 1, 0, {150, 150, 150});
       }},
      {"chunk over tcp", LaneFault::kChunkRange, [](EngineSumsTest& test) { test.UseTcp(9, 1); }},
      {"exponents", LaneFault::kStream,
       [](EngineSumsTest& test) {
         test.Assign(0, 1, 0, {150, 150});
       }},
      {"a lower exponent", LaneFault::kStream,
       [](EngineSumsTest& test) {
         test.Assign(0, 1, 0, {1, 150, 150});
       }},
      {"not announced", LaneFault::kNotAsked, [](EngineSumsTest& test) {
         test.Assign(0, 2, 0, {150, 150, 150});
       }}};
  for (const Case& each : cases) {
    class Made final : public EngineSumsTest {
      void TestBody() override {}
    } test;
    test.StartSums();
    TestKey& key = test.AddKey({0});
    test.OpenStream(test.Terms());
    test.Push(key);
    test.Run();
    each.send(test);
    test.Run();
    ASSERT_EQ(test.lanes_.closed_lanes.size(), 1u) << each.name;
    EXPECT_EQ(test.lanes_.closed_lanes[0].fault, each.fault) << each.name;
  }
}

TEST_F(EngineSumsTest, AJobWithoutSocketsRefusesStreams) {
  Start(1, 1);
  Run();
  OpenStream(Terms());
  Run();
  ASSERT_EQ(lanes_.closed_lanes.size(), 1u);
  EXPECT_EQ(lanes_.closed_lanes[0].fault, LaneFault::kUnexpectedKind);
}

}  // namespace
}  // namespace phub::client
