#include "server/control/racks/peer_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace phub::server {
namespace {

constexpr std::size_t kMiB = 1 << 20;

v1::PeerMessage Barrier(std::uint64_t reached = 1) {
  v1::PeerMessage message;
  message.mutable_barrier()->set_reached(reached);
  return message;
}
v1::PeerMessage Open(std::size_t plan_bytes = 10) {
  v1::PeerMessage message;
  message.mutable_open()->set_plan(std::string(plan_bytes, 'x'));
  return message;
}
v1::PeerMessage Failed() {
  v1::PeerMessage message;
  message.mutable_failed();
  return message;
}
PeerSender RunOf(std::uint64_t incarnation, std::string tenant = "one") {
  return {std::move(tenant), Incarnation{incarnation}};
}
v1::PeerEnvelope Filled(PeerQueue& queue) {
  v1::PeerEnvelope envelope;
  const std::size_t count = queue.Fill(envelope);
  EXPECT_EQ(count, static_cast<std::size_t>(envelope.messages_size()));
  return envelope;
}
// Takes all waiting messages. Returns their barrier numbers.
std::vector<std::uint64_t> BarriersIn(PeerQueue& queue) {
  std::vector<std::uint64_t> reached;
  while (!queue.empty()) {
    const v1::PeerEnvelope envelope = Filled(queue);
    for (const v1::PeerMessage& message : envelope.messages()) {
      reached.push_back(message.barrier().reached());
    }
    queue.Take(envelope.first_sequence() + static_cast<std::uint64_t>(envelope.messages_size()));
  }
  return reached;
}

TEST(PeerQueue, AnEnvelopeHoldsAMebibyteOrOneMessage) {
  const auto filled = [](const std::vector<std::size_t>& sizes) {
    PeerQueue queue;
    for (const std::size_t size : sizes) queue.Push(RunOf(1), Open(size));
    return Filled(queue).messages_size();
  };
  EXPECT_EQ(filled({}), 0);
  EXPECT_EQ(filled(std::vector<std::size_t>(100, 10)), 64);
  EXPECT_EQ(filled({kMiB / 2, kMiB / 4, kMiB / 2}), 2);
  EXPECT_EQ(filled({3 * kMiB, 10}), 1);
  EXPECT_EQ(filled({10, 3 * kMiB, 10}), 1);
}

TEST(PeerQueue, MessagesAreRepeatedUntilTheyAreTaken) {
  PeerQueue queue;
  for (std::uint64_t i = 0; i < 3; ++i) queue.Push(RunOf(1), Barrier(i));
  EXPECT_EQ(Filled(queue).messages_size(), 3);
  queue.Take(2);
  const v1::PeerEnvelope envelope = Filled(queue);
  EXPECT_EQ(envelope.first_sequence(), 2u);
  ASSERT_EQ(envelope.messages_size(), 1);
  EXPECT_EQ(envelope.messages(0).barrier().reached(), 2u);
}

TEST(PeerQueue, OneRunThatFillsItLosesWhatWaitsAndNobodyElseDoes) {
  PeerQueue queue({.messages = 100, .bytes = kMiB});
  queue.Push(RunOf(1), Barrier(7));
  for (int i = 0; i < 99; ++i) EXPECT_EQ(queue.Push(RunOf(2), Barrier()).count, 0u);
  const DroppedMessages dropped = queue.Push(RunOf(3), Barrier(8));
  EXPECT_FALSE(dropped.all);
  ASSERT_EQ(dropped.senders.size(), 1u);
  EXPECT_EQ(dropped.senders[0].whose, RunOf(2));
  EXPECT_EQ(dropped.senders[0].count, 99u);
  // Expect: there is no gap in the sequence, since none of the messages was in an envelope.
  EXPECT_EQ(queue.first_sequence(), 0u);
  EXPECT_THAT(BarriersIn(queue), ::testing::ElementsAre(7, 8));
}

TEST(PeerQueue, WhoFillsItWithBytesLosesThem) {
  PeerQueue queue({.messages = 100, .bytes = 4 * kMiB});
  for (int i = 0; i < 20; ++i) queue.Push(RunOf(1), Barrier(7));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(queue.Push(RunOf(2), Open(kMiB)).count, 0u);
  const DroppedMessages dropped = queue.Push(RunOf(2), Open(kMiB));
  ASSERT_EQ(dropped.senders.size(), 1u);
  EXPECT_EQ(dropped.senders[0].whose, RunOf(2));
  EXPECT_EQ(queue.size(), 20u);
}

// Many small runs of one tenant: that tenant loses messages, although another tenant's run is
// larger than each of them.
TEST(PeerQueue, OfManySmallRunsOneOfTheTenantThatHasMostLosesWhatWaits) {
  PeerQueue queue({.messages = 100, .bytes = kMiB});
  for (int i = 0; i < 4; ++i) queue.Push(RunOf(1, "other"), Barrier(7));
  DroppedMessages dropped;
  for (std::uint64_t run = 10; dropped.count == 0; ++run) {
    ASSERT_LT(run, 110u);
    dropped = queue.Push(RunOf(run), Barrier());
  }
  ASSERT_EQ(dropped.senders.size(), 1u);
  EXPECT_EQ(dropped.senders[0].whose.tenant, "one");
  EXPECT_EQ(dropped.count, 1u);
  // Expect: a run that exceeds its share loses messages before a tenant with many small runs does.
  for (int i = 0; i < 3; ++i) dropped = queue.Push(RunOf(1, "other"), Barrier(7));
  ASSERT_EQ(dropped.senders.size(), 1u);
  EXPECT_EQ(dropped.senders[0].whose, RunOf(1, "other"));
  EXPECT_EQ(dropped.count, 7u);
}

TEST(PeerQueue, WhatMayBeUnderWayIsNotTakenOut) {
  PeerQueue queue({.messages = 10, .bytes = kMiB});
  for (std::uint64_t i = 0; i < 5; ++i) queue.Push(RunOf(1), Barrier(i));
  EXPECT_EQ(Filled(queue).messages_size(), 5);
  for (std::uint64_t i = 5; i < 10; ++i) queue.Push(RunOf(1), Barrier(i));
  EXPECT_EQ(queue.Push(RunOf(2), Barrier(20)).count, 5u);
  EXPECT_THAT(BarriersIn(queue), ::testing::ElementsAre(0, 1, 2, 3, 4, 20));
}

TEST(PeerQueue, ARunThatFailedHasNothingElseToSay) {
  PeerQueue queue;
  queue.Push(RunOf(1), Barrier(1));
  EXPECT_EQ(Filled(queue).messages_size(), 1);
  queue.Push(RunOf(1), Barrier(2));
  queue.Push(RunOf(2), Barrier(3));
  queue.Push(RunOf(1), Failed());
  EXPECT_EQ(queue.size(), 3u);
  EXPECT_TRUE(queue.back().has_failed());
  // Expect: a rack that never received a run does not receive its end.
  queue.Push(RunOf(4), Open());
  queue.Push(RunOf(4), Failed());
  EXPECT_EQ(queue.size(), 3u);
}

TEST(PeerQueue, IfNothingCanBeTakenOutAllIsDroppedAndTheGapTells) {
  PeerQueue queue({.messages = 10, .bytes = kMiB});
  for (std::uint64_t run = 0; run < 10; ++run) queue.Push(RunOf(run), Failed());
  const DroppedMessages dropped = queue.Push(RunOf(11), Failed());
  EXPECT_TRUE(dropped.all);
  EXPECT_EQ(dropped.count, 11u);
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(Filled(queue).first_sequence(), 11u);
}

}  // namespace
}  // namespace phub::server
