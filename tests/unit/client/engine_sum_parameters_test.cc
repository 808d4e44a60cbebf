// New parameters that come as datagrams.
#include <algorithm>
#include <array>

#include "common/aggregation/parameter_blocks.h"
#include "tests/unit/client/engine_sums_fixture.h"

namespace phub::client {
namespace {

constexpr auto kAsked = static_cast<std::uint32_t>(MessageKind::kMissing);

class EngineSumParametersTest : public EngineSumsTest {
 protected:
  // A stream is open, and the round of a key with one chunk has a position.
  TestKey& Begin() {
    StartSums();
    TestKey& key = AddKey({0});
    OpenStream(Terms());
    Push(key);
    Run();
    Assign(0, 1, 0, {150, 150, 150});
    Run();
    transport_.TakePosted();
    return key;
  }
  // Block i has the values i + 1.
  void SendBlock(std::uint32_t block, std::uint32_t version = 1, std::uint32_t count = 0) {
    if (count == 0) count = block + 1 < kBlocks ? kBlock : 16;
    std::array<float, 2 * kBlock> values;
    values.fill(static_cast<float>(block + 1));
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(values.data());
    phub_packet packet{};
    packet.lease = kLease;
    packet.worker = PHUB_EVERY_WORKER;
    packet.count = static_cast<__u16>(count);
    packet.payload_sum = phub_payload_sum(bytes, count);
    const phub_parameters about = {
        .version = version, .chunk = 0, .block = static_cast<__u16>(block)};
    phub_packet_set_parameters(&packet, &about);
    std::array<std::uint8_t, PHUB_PACKET_BYTES> header{};
    const phub_lease lease = aggregation::LeaseOf(Terms());
    phub_packet_encode(&packet, &lease.key, header.data());
    aggregator_.Queue(socket_.endpoint(), header, {bytes, 4u * count});
    aggregator_.Flush();
    Run();
  }
  // Runs at the times at which the engine has something to do, until it has asked.
  Posted NextQuestion() {
    for (int i = 0; i < 50; ++i) {
      clock_.now = engine_->NextTimer();
      for (Posted& one : RunAndTake()) {
        if (static_cast<std::uint32_t>(one.header.kind) == kAsked) return std::move(one);
      }
    }
    ADD_FAILURE() << "it never asks";
    return {};
  }
};

TEST_F(EngineSumParametersTest, ARoundIsCompleteOnceAllBlocksHaveArrived) {
  TestKey& key = Begin();
  SendBlock(2);
  SendBlock(0);
  SendBlock(0);
  EXPECT_EQ(key.rounds.complete_count, 0);
  SendBlock(1);
  EXPECT_EQ(key.rounds.complete_count, 1);
  for (std::uint32_t i = 0; i < kChunkElements; ++i)
    ASSERT_EQ(key.parameters[i], static_cast<float>(i / kBlock + 1)) << i;
  // Expect: a late copy changes nothing, and the next round goes on.
  key.parameters[0] = 99.0f;
  SendBlock(0);
  EXPECT_EQ(key.parameters[0], 99.0f);
  Push(key);
  EXPECT_EQ(Kinds(RunAndTake()), Numbers{kAnnounced});
  Assign(0, 2, 1, {150, 150, 150});
  Run();
  SendBlock(0, 1);
  EXPECT_EQ(key.parameters[0], 99.0f) << "it is of the version before";
  SendBlock(0, 2);
  EXPECT_EQ(key.parameters[0], 1.0f);
  EXPECT_EQ(key.rounds.complete_count, 1);
  EXPECT_TRUE(lanes_.closed_lanes.empty());
}

TEST_F(EngineSumParametersTest, BlocksOfAnotherSizeOrPlaceAreIgnored) {
  TestKey& key = Begin();
  const float before = key.parameters[0];
  SendBlock(0, 1, kBlock - 1);
  SendBlock(2, 1, 17);
  SendBlock(kBlocks - 1, 1, kBlock);
  EXPECT_EQ(key.parameters[0], before);
  EXPECT_EQ(key.parameters[2 * kBlock], before);
  for (std::uint32_t block = 0; block < kBlocks; ++block) SendBlock(block);
  EXPECT_EQ(key.rounds.complete_count, 1);
}

TEST_F(EngineSumParametersTest, TheEngineAsksForTheBlocksThatAreMissing) {
  TestKey& key = Begin();
  SendBlock(0);
  const Posted question = NextQuestion();
  EXPECT_EQ(question.header.version, wire::kStreamVersion);
  EXPECT_EQ(question.header.chunk.value, 0u);
  EXPECT_EQ(question.header.iteration.value, 1u);
  EXPECT_EQ(question.bytes, std::vector{std::byte{6}});
  SendBlock(1);
  SendBlock(2);
  EXPECT_EQ(key.rounds.complete_count, 1);
}

TEST_F(EngineSumParametersTest, IfNoneArriveTheParametersComeOverTheLane) {
  TestKey& key = Begin();
  for (std::uint32_t i = 0; i < aggregation::ParameterBlocks::kQuestionsMax; ++i)
    EXPECT_EQ(NextQuestion().bytes, std::vector{std::byte{7}});
  EXPECT_TRUE(NextQuestion().bytes.empty());
  UseTcp(0, 1);
  EXPECT_EQ(Kinds(RunAndTake()), Numbers{kPushed});
  // Expect: datagrams are not taken any more, because the reply comes.
  for (std::uint32_t block = 0; block < kBlocks; ++block) SendBlock(block);
  EXPECT_EQ(key.rounds.complete_count, 0);
  Reply(0, 0, 1, 7.0f);
  Run();
  EXPECT_EQ(key.rounds.complete_count, 1);
  EXPECT_EQ(key.parameters[0], 7.0f);
  EXPECT_TRUE(lanes_.closed_lanes.empty());
}

TEST_F(EngineSumParametersTest, WhileThereIsNoLaneBlocksAreNotTaken) {
  TestKey& key = Begin();
  SendBlock(0);
  transport_.Break(0, transport::TransportError::kReset);
  Run();
  SendBlock(1);
  SendBlock(2);
  EXPECT_EQ(key.rounds.complete_count, 0);
  clock_.now += 10 * kSecond;
  EXPECT_TRUE(RunAndTake().empty()) << "there is no lane to ask on";
  EXPECT_GT(engine_->NextTimer(), clock_.now) << "it would spin";
  Attach(0);
  EXPECT_EQ(Kinds(RunAndTake()), Numbers{kAnnounced});
  OpenStream(Terms(), 1);
  Run();
  SendBlock(1);
  SendBlock(2);
  EXPECT_EQ(key.rounds.complete_count, 1);
}

TEST_F(EngineSumParametersTest, WhatWasOnItsWayWhenTheStreamEndsIsPushed) {
  TestKey& key = Begin();
  SendBlock(0);
  CloseStream();
  EXPECT_EQ(Kinds(RunAndTake()), Numbers{kPushed});
  SendBlock(1);
  SendBlock(2);
  EXPECT_EQ(key.rounds.complete_count, 0);
  Reply(0, 0, 1, 7.0f);
  Run();
  EXPECT_EQ(key.rounds.complete_count, 1);
}

}  // namespace
}  // namespace phub::client
