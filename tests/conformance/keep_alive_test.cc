// Signs of life: what the owner of a lane sees of its peer.
#include <chrono>
#include <thread>

#include "common/base/clock.h"
#include "tests/conformance/lane_test.h"

namespace phub::conformance {
namespace {

class KeepAlive : public LaneTest {
 protected:
  const SystemClock clock_;

  transport::Activity RightSees(const Lane& lane) const {
    return right.transport->ActivityOf(lane.right);
  }
  // Only keep-alives have arrived.
  void ExpectNoOtherMessages() const {
    for (const Seen& item : right.seen) {
      if (item.completion.kind != CompletionKind::kReceived) continue;
      EXPECT_EQ(item.header.kind, wire::MessageKind::kKeepAlive);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Transports, KeepAlive, ::testing::ValuesIn(AllHarnesses()), HarnessName);

TEST_P(KeepAlive, ThePeerSeesThatThisEndIsAlive) {
  Start();
  const Lane& lane = Open();
  Settle();
  const transport::Activity before = RightSees(lane);
  EXPECT_TRUE(before.read_all);
  Settle();
  EXPECT_EQ(RightSees(lane).received, before.received);
  // Over RDMA, opening the lane has sent something since the last call, so the first call need not.
  EXPECT_TRUE(Until([&] {
    left.transport->SendKeepAlive(lane.left);
    return RightSees(lane).received != before.received;
  }));
  ExpectNoOtherMessages();
}

TEST_P(KeepAlive, EveryMessageIsASignOfLife) {
  Start();
  Lane& lane = Open();
  Settle();
  const transport::Activity before = RightSees(lane);
  ASSERT_EQ(left.Post({.header = Credit(3), .payload = {}, .connections = {&lane.left, 1}}), 1u);
  EXPECT_TRUE(Until([&] { return right.received() == 1; }));
  EXPECT_NE(RightSees(lane).received, before.received);
}

TEST_P(KeepAlive, AHeldLaneIsNotRead) {
  Start();
  const Lane& lane = Open();
  Settle();
  right.transport->Hold(lane.right, true);
  Settle();
  EXPECT_FALSE(RightSees(lane).read_all);
  right.transport->Hold(lane.right, false);
  EXPECT_TRUE(Until([&] { return RightSees(lane).read_all; }));
}

// A lane may be idle for days. The allowances for small records and empty messages last.
TEST_P(KeepAlive, ThousandsOfThemHarmNoLane) {
  Start();
  const Lane& lane = Open();
  Settle();
  // Over RDMA they may not come faster than some thousands per second.
  const int count = GetParam().streams ? 5000 : 600;
  for (int i = 0; i < count; ++i) {
    left.transport->SendKeepAlive(lane.left);
    left.Poll();
    right.Poll();
    if (!GetParam().streams) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (!GetParam().streams || i % 100 == 0) harness->Pump();
    right.transport->Tick(clock_.Now());
  }
  const transport::Activity before = RightSees(lane);
  Settle();
  left.transport->SendKeepAlive(lane.left);
  EXPECT_TRUE(Until([&] { return RightSees(lane).received != before.received; }));
  EXPECT_EQ(left.closed() + right.closed(), 0u);
  ExpectNoOtherMessages();
}

TEST_P(KeepAlive, AClosedLaneShowsNothing) {
  Start();
  const Lane& lane = Open();
  left.transport->Close(lane.left);
  ASSERT_TRUE(Until([&] { return left.closed() == 1 && right.closed() == 1; }));
  left.transport->SendKeepAlive(lane.left);
  EXPECT_FALSE(RightSees(lane).read_all);
  EXPECT_EQ(RightSees(lane).received, 0u);
}

class KeepAliveStream : public KeepAlive {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(KeepAliveStream);
INSTANTIATE_TEST_SUITE_P(Transports, KeepAliveStream, ::testing::ValuesIn(StreamHarnesses()),
                         HarnessName);

TEST_P(KeepAliveStream, BytesInsideAMessageAreSignsOfLife) {
  Start();
  std::unique_ptr<transport::Connection> connection;
  const std::unique_ptr<RawPeer> peer = harness->ConnectRaw(connection);
  const Landing landing(kSlots, kSlotBytes);
  const ConnectionId id = left.transport->Adopt(*connection, landing.table);
  left.landings.emplace_back(id, &landing);
  raw_connections.push_back(std::move(connection));
  std::array<std::byte, wire::kHeaderBytes> header;
  wire::EncodeHeader(Gradient(0, 1000), header);
  peer->Write(header);
  Settle();
  for (int i = 0; i < 5; ++i) {
    const transport::Activity before = left.transport->ActivityOf(id);
    peer->Write(PatternBytes(10, 1));
    EXPECT_TRUE(Until([&] { return left.transport->ActivityOf(id).received != before.received; }));
  }
  EXPECT_EQ(left.received(), 0u);
  left.transport->Close(id);
  EXPECT_TRUE(Until([&] { return left.closed() == 1; }));
}

TEST_P(KeepAliveStream, ALaneWithTrafficNeedsNone) {
  Start();
  Lane& lane = Open();
  left.transport->SendKeepAlive(lane.left);
  ASSERT_EQ(left.Post({.header = Credit(3), .payload = {}, .connections = {&lane.left, 1}}), 1u);
  left.transport->SendKeepAlive(lane.left);
  ASSERT_TRUE(Until([&] { return right.received() == 2; }));
  Settle();
  EXPECT_EQ(right.received(), 2u);
  left.transport->SendKeepAlive(lane.left);
  EXPECT_TRUE(Until([&] { return right.received() == 3; }));
}

}  // namespace
}  // namespace phub::conformance
