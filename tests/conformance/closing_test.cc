// How connections end, and what ends with them. Also tables, stale ids, and Arm().
#include <poll.h>

#include "tests/conformance/lane_test.h"

namespace phub::conformance {
namespace {

class Closing : public LaneTest {
 protected:
  // Expects one kClosed for this connection, as its last completion.
  static void ExpectClosed(const Side& side, ConnectionId id, TransportError error) {
    const std::vector<Seen> closed = side.Of(CompletionKind::kClosed, id);
    ASSERT_EQ(closed.size(), 1u);
    EXPECT_EQ(closed[0].completion.error, error) << ToString(closed[0].completion.error);
    for (auto item = side.seen.rbegin(); item != side.seen.rend(); ++item) {
      if (item->completion.connection != id) continue;
      EXPECT_EQ(item->completion.kind, CompletionKind::kClosed);
      break;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Transports, Closing, ::testing::ValuesIn(AllHarnesses()), HarnessName);

class StreamClosing : public Closing {};
// Transports whose lanes are not byte streams do not instantiate these tests.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StreamClosing);
INSTANTIATE_TEST_SUITE_P(Transports, StreamClosing, ::testing::ValuesIn(StreamHarnesses()),
                         HarnessName);

class Sleeping : public Closing {};
INSTANTIATE_TEST_SUITE_P(Transports, Sleeping, ::testing::ValuesIn(BlockingHarnesses()),
                         HarnessName);

TEST_P(Closing, BothEndsAreToldOnce) {
  Start();
  Lane& lane = Open();
  Settle();
  left.transport->Close(lane.left);
  left.transport->Close(lane.left);
  ASSERT_TRUE(Until([&] { return left.closed() == 1 && right.closed() == 1; }));
  Settle();
  ExpectClosed(left, lane.left, TransportError::kLocalClosed);
  ExpectClosed(right, lane.right, TransportError::kPeerClosed);
  EXPECT_EQ(right.seen.back().completion.protocol_error, ProtocolError::kNone);
}

TEST_P(Closing, WhatWasSentBeforeArrivesBefore) {
  Start();
  Lane& lane = Open();
  const Bytes payload = PatternBytes(kSlotBytes, 11);
  for (std::uint32_t i = 0; i < 10; ++i) {
    ASSERT_EQ(left.Post({.header = Gradient(i, payload.size(), i),
                         .payload = payload,
                         .connections = {&lane.left, 1},
                         .notify_sent = true}),
              1u);
  }
  ASSERT_TRUE(Until([&] { return left.sent() == 10; }));
  left.transport->Close(lane.left);
  ASSERT_TRUE(Until([&] { return right.closed() == 1; }));
  ExpectClosed(right, lane.right, TransportError::kPeerClosed);
  const std::vector<Seen> got = right.Of(CompletionKind::kReceived, lane.right);
  ASSERT_EQ(got.size(), 10u);
  for (const Seen& item : got) EXPECT_EQ(item.payload, payload);
}

TEST_P(Closing, DropsWhatWasNotSent) {
  Start();
  Lane& lane = Open();
  // More than any pipe holds, while the right side does not read.
  const Bytes payload = PatternBytes(kChunkBytesMax, 12);
  for (std::uint64_t i = 0; i < 10; ++i) {
    ASSERT_EQ(left.Post({.header = Gradient(0, payload.size(), i),
                         .payload = payload,
                         .connections = {&lane.left, 1},
                         .cookie = i,
                         .notify_sent = true}),
              1u);
  }
  for (int i = 0; i < 20; ++i) {
    left.Poll();
    harness->Pump();
  }
  const std::size_t sent = left.sent();
  EXPECT_LT(sent, 10u);
  left.transport->Close(lane.left);
  for (int i = 0; i < 20; ++i) left.Poll();
  EXPECT_EQ(left.sent(), sent);
  ExpectClosed(left, lane.left, TransportError::kLocalClosed);
}

TEST_P(Closing, ClosedConnectionSwallowsRequests) {
  Start({.send_queue = 4});
  Lane& lane = Open();
  Lane& other = Open();
  Settle();
  const ConnectionId both[] = {lane.left, other.left};
  const SendRequest request{
      .header = Credit(0), .payload = {}, .connections = both, .cookie = 5, .notify_sent = true};
  left.transport->Close(lane.left);
  // Expect: accepted before and after kClosed was polled, and the live connection is served.
  EXPECT_EQ(left.Post(request), 1u);
  ASSERT_TRUE(Until([&] { return left.closed() == 1; }));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(left.Post(request), 1u);
  ASSERT_TRUE(Until([&] { return right.received() == 4 && left.sent() == 4; }));
  EXPECT_EQ(left.Of(CompletionKind::kSent, lane.left).size(), 0u);
}

TEST_P(StreamClosing, ResetIsReportedToTheSurvivor) {
  Start();
  std::unique_ptr<transport::Connection> connection;
  const std::unique_ptr<RawPeer> peer = harness->ConnectRaw(connection);
  ASSERT_NE(peer, nullptr);
  raw_connections.push_back(std::move(connection));
  Landing landing(4, kSlotBytes);
  const ConnectionId id = left.transport->Adopt(*raw_connections.back(), landing.table);
  Settle();
  peer->Reset();
  ASSERT_TRUE(Until([&] { return left.closed() == 1; }));
  ExpectClosed(left, id, TransportError::kReset);
}

TEST_P(StreamClosing, PeerKilledInsideAMessageIsALossNotABreach) {
  // In a header, at the start of a payload, and in the middle of it.
  for (const std::size_t cut : {std::size_t{1}, std::size_t{63}, wire::kHeaderBytes,
                                wire::kHeaderBytes + 1, wire::kHeaderBytes + 999}) {
    SCOPED_TRACE(cut);
    Start();
    left.seen.clear();
    right.seen.clear();
    Lane& bystander = Open();
    std::unique_ptr<transport::Connection> connection;
    std::unique_ptr<RawPeer> peer = harness->ConnectRaw(connection);
    ASSERT_NE(peer, nullptr);
    Landing landing(4, kSlotBytes);
    const ConnectionId id = left.transport->Adopt(*connection, landing.table);
    left.landings.emplace_back(id, &landing);
    // One complete message, and a part of another.
    const Bytes payload = PatternBytes(1000, 13);
    Bytes bytes(wire::kHeaderBytes);
    wire::EncodeHeader(Gradient(1, payload.size()),
                       std::span<std::byte, wire::kHeaderBytes>(bytes.data(), bytes.size()));
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    peer->Write(bytes);
    peer->Write({bytes.data(), cut});
    peer->Close();
    ASSERT_TRUE(Until([&] { return left.closed() == 1; }));
    ExpectClosed(left, id, TransportError::kPeerClosed);
    EXPECT_EQ(left.seen.back().completion.protocol_error, ProtocolError::kTruncated);
    ASSERT_EQ(left.received(), 1u);
    EXPECT_EQ(left.seen.front().payload, payload);
    // Expect: the other lane still works.
    ASSERT_EQ(left.Post({.header = Credit(2), .payload = {}, .connections = {&bystander.left, 1}}),
              1u);
    ASSERT_TRUE(Until([&] { return right.received() == 1; }));
    peer.reset();
    connection.reset();
    TearDown();
  }
  Start();  // for TearDown
}

TEST_P(Closing, StaleNamesAreIgnored) {
  Start();
  Lane& old = Open();
  const ConnectionId stale = old.left;
  left.transport->Close(stale);
  ASSERT_TRUE(Until([&] { return left.closed() == 1; }));
  Lane& fresh = Open();
  EXPECT_NE(fresh.left, stale);
  // Expect: calls with the stale id do not affect the new connection, although both may have used
  // the same place of the table.
  left.transport->Close(stale);
  left.transport->SetLanding(stale, {});
  const Completion release{.kind = CompletionKind::kReceived, .connection = stale};
  left.transport->Release({&release, 1});
  EXPECT_EQ(left.Post({.header = Credit(0), .payload = {}, .connections = {&stale, 1}}), 1u);
  const ConnectionId never;
  left.transport->Close(never);
  EXPECT_EQ(left.Post({.header = Credit(0), .payload = {}, .connections = {&never, 1}}), 1u);
  const Bytes payload = PatternBytes(100, 14);
  ASSERT_EQ(right.Post({.header = Gradient(3, payload.size()),
                        .payload = payload,
                        .connections = {&fresh.right, 1}}),
            1u);
  ASSERT_TRUE(Until([&] { return left.received() == 1; }));
  EXPECT_EQ(left.seen.back().payload, payload);
  EXPECT_EQ(left.closed(), 1u);
  EXPECT_EQ(right.Of(CompletionKind::kReceived, fresh.right).size(), 0u);
}

TEST_P(Closing, FullTableRefusesUntilAPlaceIsFree) {
  Start({.connections_max = 2});
  Lane& first = Open();
  Open();
  Lane& third = Open();
  EXPECT_EQ(third.left, ConnectionId{});
  left.transport->Close(first.left);
  ASSERT_TRUE(Until([&] { return left.closed() == 1; }));
  third.left = left.transport->Adopt(*third.left_connection, third.left_landing->table);
  EXPECT_NE(third.left, ConnectionId{});
}

TEST_P(Closing, ArmTellsWhetherSomethingIsPending) {
  Start();
  Lane& lane = Open();
  Settle();
  EXPECT_TRUE(left.transport->Arm());
  EXPECT_TRUE(right.transport->Arm());
  EXPECT_TRUE(right.transport->Arm()) << "arming twice is harmless";
  // Posted and not yet written: pending.
  ASSERT_EQ(left.Post({.header = Credit(0), .payload = {}, .connections = {&lane.left, 1}}), 1u);
  EXPECT_FALSE(left.transport->Arm());
  left.Poll();
  EXPECT_TRUE(left.transport->Arm());
  // Arrived and not yet polled: pending.
  for (int i = 0; i < 100 && right.transport->Arm(); ++i) harness->Pump();
  EXPECT_FALSE(right.transport->Arm());
  right.Poll();
  EXPECT_EQ(right.received(), 1u);
  EXPECT_TRUE(right.transport->Arm());
  // A close that was not polled yet: pending.
  left.transport->Close(lane.left);
  EXPECT_FALSE(left.transport->Arm());
}

TEST_P(Sleeping, ArmedDescriptorWakesTheSleeper) {
  Start();
  Lane& lane = Open();
  Settle();
  ASSERT_TRUE(right.transport->Arm());
  pollfd item{right.transport->descriptor(), POLLIN, 0};
  ASSERT_GE(item.fd, 0);
  EXPECT_EQ(poll(&item, 1, 0), 0);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(left.Post({.header = Credit(0), .payload = {}, .connections = {&lane.left, 1}}), 1u);
    left.Poll();
    EXPECT_EQ(poll(&item, 1, 5000), 1);
    while (!right.transport->Arm()) right.Poll();
    EXPECT_EQ(poll(&item, 1, 0), 0) << "armed again: silent until something happens";
  }
  EXPECT_EQ(right.received(), 3u);
  left.transport->Close(lane.left);
  left.Poll();
  EXPECT_EQ(poll(&item, 1, 5000), 1);
  while (!right.transport->Arm()) right.Poll();
  EXPECT_EQ(right.closed(), 1u);
}

TEST_P(Closing, RoomInAFullPipeWakesTheSender) {
  Start();
  Lane& lane = Open(1, kChunkBytesMax);
  const Bytes payload = PatternBytes(kChunkBytesMax, 15);
  for (int i = 0; i < 8; ++i) {
    ASSERT_EQ(left.Post({.header = Gradient(0, payload.size()),
                         .payload = payload,
                         .connections = {&lane.left, 1}}),
              1u);
  }
  // Fills the pipe. Then the sender has nothing to do until the other side reads.
  for (int i = 0; i < 1000 && !left.transport->Arm(); ++i) left.Poll();
  EXPECT_TRUE(left.transport->Arm());
  ASSERT_TRUE(Until([&] { return right.received() == 8; }));
}

}  // namespace
}  // namespace phub::conformance
