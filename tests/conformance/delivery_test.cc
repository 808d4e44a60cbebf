// The guarantees of a working lane: order, landing, lending, back-pressure.
#include <algorithm>

#include "tests/conformance/lane_test.h"

namespace phub::conformance {
namespace {

class Delivery : public LaneTest {};
INSTANTIATE_TEST_SUITE_P(Transports, Delivery, ::testing::ValuesIn(AllHarnesses()), HarnessName);

TEST_P(Delivery, MessagesOfOneConnectionArriveInOrder) {
  Start();
  Lane& lane = Open();
  const Bytes payload = PatternBytes(100, 1);
  // Post 500 credits and gradients in turn, as fast as they are accepted.
  std::uint64_t next = 0;
  ASSERT_TRUE(Until([&] {
    while (next < 500) {
      SendRequest request{.header = Credit(3, next), .payload = {}, .connections = {&lane.left, 1}};
      if (next % 2 == 1) {
        request.header = Gradient(next % kSlots, payload.size(), next);
        request.payload = payload;
      }
      if (left.Post(request) == 0) break;
      ++next;
    }
    return right.received() == 500;
  }));
  // Expect: all messages, in the order of posting.
  for (std::size_t i = 0; i < right.seen.size(); ++i) {
    EXPECT_EQ(right.seen[i].header.iteration.value, i);
    EXPECT_EQ(right.seen[i].payload, i % 2 == 1 ? payload : Bytes{});
  }
  EXPECT_EQ(left.sent(), 0u) << "nobody asked to be told";
}

TEST_P(Delivery, PayloadLandsInTheNamedSlotAndNowhereElse) {
  Start();
  Lane& lane = Open();
  const Bytes payload = PatternBytes(1000, 2);
  const SendRequest request{
      .header = Gradient(5, payload.size()), .payload = payload, .connections = {&lane.left, 1}};
  ASSERT_EQ(left.Post(request), 1u);
  ASSERT_TRUE(Until([&] { return right.received() == 1; }));
  Bytes expected(std::size_t{kSlots} * kSlotBytes);
  std::ranges::copy(payload, expected.begin() + 5 * kSlotBytes);
  EXPECT_EQ(lane.right_landing->memory, expected);
  EXPECT_EQ(right.seen[0].header, request.header);
}

TEST_P(Delivery, GradientsAndRepliesMayHaveNoPayload) {
  Start();
  Lane& lane = Open();
  wire::MessageHeader reply = Gradient(3, 0);
  reply.kind = wire::MessageKind::kParameters;
  // Gradients without payload need no slot.
  const wire::MessageHeader gradient = Gradient(kNoSlot.value, 0);
  ASSERT_EQ(left.Post({.header = gradient, .payload = {}, .connections = {&lane.left, 1}}), 1u);
  ASSERT_EQ(right.Post({.header = reply, .payload = {}, .connections = {&lane.right, 1}}), 1u);
  ASSERT_TRUE(Until([&] { return left.received() == 1 && right.received() == 1; }));
  EXPECT_EQ(right.seen[0].header, gradient);
  EXPECT_EQ(left.seen[0].header, reply);
  EXPECT_EQ(lane.right_landing->memory, Bytes(std::size_t{kSlots} * kSlotBytes));
}

TEST_P(Delivery, BothDirectionsAtOnce) {
  Start();
  Lane& lane = Open();
  const Bytes from_left = PatternBytes(kSlotBytes, 3);
  const Bytes from_right = PatternBytes(kSlotBytes, 4);
  for (std::uint32_t i = 0; i < 8; ++i) {
    ASSERT_EQ(left.Post({.header = Gradient(i, kSlotBytes),
                         .payload = from_left,
                         .connections = {&lane.left, 1}}),
              1u);
    wire::MessageHeader parameters = Gradient(i, kSlotBytes);
    parameters.kind = wire::MessageKind::kParameters;
    ASSERT_EQ(
        right.Post({.header = parameters, .payload = from_right, .connections = {&lane.right, 1}}),
        1u);
  }
  ASSERT_TRUE(Until([&] { return left.received() == 8 && right.received() == 8; }));
  for (const Seen& item : right.seen) EXPECT_EQ(item.payload, from_left);
  for (const Seen& item : left.seen) EXPECT_EQ(item.payload, from_right);
}

TEST_P(Delivery, OneRequestReachesEveryConnectionThatItNames) {
  Start();
  std::vector<ConnectionId> named;
  for (int i = 0; i < 5; ++i) {
    const Lane& lane = Open();
    if (i != 2) named.push_back(lane.left);
  }
  const Bytes payload = PatternBytes(3000, 5);
  ASSERT_EQ(left.Post({.header = Gradient(1, payload.size()),
                       .payload = payload,
                       .connections = named,
                       .cookie = 77,
                       .notify_sent = true}),
            1u);
  ASSERT_TRUE(Until([&] { return right.received() == 4 && left.sent() == 4; }));
  Settle();
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    const std::vector<Seen> got = right.Of(CompletionKind::kReceived, lanes[i]->right);
    ASSERT_EQ(got.size(), i == 2 ? 0u : 1u);
    if (i != 2) {
      EXPECT_EQ(got[0].payload, payload);
    }
    const std::vector<Seen> told = left.Of(CompletionKind::kSent, lanes[i]->left);
    ASSERT_EQ(told.size(), i == 2 ? 0u : 1u);
    if (i != 2) {
      EXPECT_EQ(told[0].completion.cookie, 77u);
    }
  }
}

TEST_P(Delivery, PayloadMayChangeOnceItWasSent) {
  Start();
  Lane& lane = Open();
  Bytes payload = PatternBytes(kSlotBytes, 6);
  const Bytes original = payload;
  ASSERT_EQ(left.Post({.header = Gradient(0, payload.size()),
                       .payload = payload,
                       .connections = {&lane.left, 1},
                       .notify_sent = true}),
            1u);
  while (left.sent() == 0) {
    left.Poll();
    if (left.sent() > 0) break;
    right.Poll();
    harness->Pump();
  }
  std::ranges::fill(payload, std::byte{0xEE});
  ASSERT_TRUE(Until([&] { return right.received() == 1; }));
  EXPECT_EQ(right.seen[0].payload, original);
}

TEST_P(Delivery, SentIsReportedInOrderOfPosting) {
  Start();
  Lane& lane = Open();
  const Bytes payload = PatternBytes(2000, 7);
  for (std::uint64_t i = 0; i < 40; ++i) {
    // Expect: messages without a request for kSent leave no gap and no completion.
    ASSERT_EQ(left.Post({.header = Gradient(0, payload.size(), i),
                         .payload = payload,
                         .connections = {&lane.left, 1},
                         .cookie = i,
                         .notify_sent = i % 3 == 0}),
              1u);
  }
  ASSERT_TRUE(Until([&] { return right.received() == 40 && left.sent() == 14; }));
  for (std::size_t i = 0; i < left.seen.size(); ++i) {
    EXPECT_EQ(left.seen[i].completion.cookie, 3 * i);
  }
}

TEST_P(Delivery, LentMessagesHoldThePeerBackUntilRelease) {
  Start({.received_lent = 4});
  Lane& lane = Open();
  for (std::uint64_t i = 0; i < 20; ++i) {
    ASSERT_EQ(left.Post({.header = Credit(0, i), .payload = {}, .connections = {&lane.left, 1}}),
              1u);
  }
  // Expect: exactly four, however long the test waits, and nothing pending that would keep the
  // owner awake.
  right.release_at_once = false;
  ASSERT_TRUE(Until([&] { return right.received() == 4; }));
  Settle();
  EXPECT_EQ(right.received(), 4u);
  EXPECT_TRUE(right.transport->Arm());
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(right.lent[i].message->header.iteration.value, i) << "lent memory stays";
  }
  // Release one: one more may arrive.
  right.transport->Release({right.lent.data(), 1});
  right.lent.erase(right.lent.begin());
  ASSERT_TRUE(Until([&] { return right.received() == 5; }));
  Settle();
  EXPECT_EQ(right.received(), 5u);
  // Release all, twice: a message is not freed twice.
  const std::vector<Completion> again = right.lent;
  right.ReleaseAll();
  right.transport->Release(again);
  ASSERT_TRUE(Until([&] { return right.received() == 9; }));
  Settle();
  EXPECT_EQ(right.received(), 9u);
  right.ReleaseAll();
  right.release_at_once = true;
  ASSERT_TRUE(Until([&] { return right.received() == 20; }));
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(right.seen[i].header.iteration.value, i);
  }
}

TEST_P(Delivery, FullSendQueueTakesFewerAndGoesOnLater) {
  Start({.send_queue = 8});
  Lane& lane = Open();
  std::vector<SendRequest> requests;
  for (std::uint64_t i = 0; i < 20; ++i) {
    requests.push_back({.header = Credit(0, i), .payload = {}, .connections = {&lane.left, 1}});
  }
  std::size_t taken = left.transport->Post(requests);
  EXPECT_EQ(taken, 8u);
  EXPECT_EQ(left.transport->Post(std::span(requests).subspan(taken)), 0u);
  ASSERT_TRUE(Until([&] {
    taken += left.transport->Post(std::span(requests).subspan(taken));
    return right.received() == 20;
  }));
  for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(right.seen[i].header.iteration.value, i);
}

TEST_P(Delivery, RequestForManyIsTakenByAllOrByNone) {
  Start({.send_queue = 4});
  Lane& empty = Open();
  Lane& full = Open();
  for (std::uint64_t i = 0; i < 4; ++i) {
    ASSERT_EQ(left.Post({.header = Credit(0, i), .payload = {}, .connections = {&full.left, 1}}),
              1u);
  }
  const ConnectionId both[] = {empty.left, full.left};
  const SendRequest request{.header = Credit(1, 99), .payload = {}, .connections = both};
  EXPECT_EQ(left.Post(request), 0u);
  ASSERT_TRUE(Until([&] { return right.received() == 4; }));
  Settle();
  EXPECT_EQ(right.Of(CompletionKind::kReceived, empty.right).size(), 0u);
  EXPECT_EQ(left.Post(request), 1u);
  ASSERT_TRUE(Until([&] { return right.received() == 6; }));
  EXPECT_EQ(right.Of(CompletionKind::kReceived, empty.right).size(), 1u);
}

TEST_P(Delivery, LargestAndEmptyPayloads) {
  Start();
  Lane& lane = Open(2, kChunkBytesMax);
  const Bytes largest = PatternBytes(kChunkBytesMax, 8);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(left.Post({.header = Gradient(0, largest.size()),
                         .payload = largest,
                         .connections = {&lane.left, 1}}),
              1u);
    ASSERT_EQ(left.Post({.header = Gradient(1, 0), .payload = {}, .connections = {&lane.left, 1}}),
              1u);
  }
  ASSERT_TRUE(Until([&] { return right.received() == 6; }));
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(right.seen[i].payload.size(), i % 2 == 0 ? largest.size() : 0);
    if (i % 2 == 0) {
      EXPECT_TRUE(right.seen[i].payload == largest);
    }
  }
}

TEST_P(Delivery, LongerLandingTableTakesEffectForWhatComesAfter) {
  Start();
  Lane& lane = Open(2);
  Landing longer(40, kSlotBytes);
  const Bytes payload = PatternBytes(500, 9);
  right.transport->SetLanding(lane.right, longer.table);
  right.landings = {{lane.right, &longer}};
  ASSERT_EQ(left.Post({.header = Gradient(39, payload.size()),
                       .payload = payload,
                       .connections = {&lane.left, 1}}),
            1u);
  ASSERT_TRUE(Until([&] { return right.received() == 1; }));
  EXPECT_EQ(right.seen[0].payload, payload);
}

TEST_P(Delivery, RecordsTravelInlineAndAreCopiedWhenPosted) {
  Start();
  Lane& lane = Open();
  for (const auto kind : {wire::MessageKind::kHyperParameters, wire::MessageKind::kAnnounce,
                          wire::MessageKind::kStreamIs, wire::MessageKind::kAssign}) {
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{32}, wire::kInlineBytesMax}) {
      right.seen.clear();
      Bytes payload = PatternBytes(bytes, bytes);
      const Bytes original = payload;
      wire::MessageHeader header;
      header.kind = kind;
      if (kind != wire::MessageKind::kHyperParameters) header.version = wire::kStreamVersion;
      header.hyper_version = HyperVersion{3};
      header.payload_bytes = static_cast<std::uint32_t>(bytes);
      ASSERT_EQ(left.Post({.header = header, .payload = payload, .connections = {&lane.left, 1}}),
                1u);
      std::ranges::fill(payload, std::byte{0xEE});
      ASSERT_TRUE(Until([&] { return right.received() == 1; }));
      EXPECT_EQ(right.seen[0].header, header);
      EXPECT_EQ(right.seen[0].payload, original);
    }
  }
  // Expect: no landing slot was touched.
  EXPECT_EQ(lane.right_landing->memory, Bytes(lane.right_landing->memory.size()));
}

// Expect: a side that holds a lane may block; messages that arrived meanwhile are there once the
// lane is read again.
TEST_P(Delivery, AHeldLaneThatHasNothingToSendKeepsNobodyBusy) {
  Start();
  Lane& lane = Open();
  Settle();
  right.transport->Hold(lane.right, true);
  const SendRequest credit{
      .header = Credit(3, 1), .payload = {}, .connections = {&lane.left, 1}, .notify_sent = true};
  ASSERT_EQ(left.Post(credit), 1u);
  ASSERT_TRUE(Until([&] { return left.sent() == 1; }));
  ASSERT_TRUE(Until([&] { return right.transport->Arm(); }));
  Settle();
  EXPECT_TRUE(right.transport->Arm());
  EXPECT_EQ(right.received(), 0u);
  right.transport->Hold(lane.right, false);
  EXPECT_TRUE(Until([&] { return right.received() == 1; }));
}

TEST_P(Delivery, BusyLaneDoesNotStarveAnother) {
  Start({.send_queue = 64});
  Lane& busy = Open();
  Lane& quiet = Open();
  const Bytes payload = PatternBytes(64, 10);
  const auto keep_busy = [&] {
    while (left.Post({.header = Gradient(0, payload.size()),
                      .payload = payload,
                      .connections = {&busy.left, 1}}) == 1) {
    }
  };
  keep_busy();
  ASSERT_EQ(left.Post({.header = Credit(0, 7), .payload = {}, .connections = {&quiet.left, 1}}),
            1u);
  // Expect: the quiet lane's message arrives although the busy lane always has messages.
  std::size_t before = 0;
  ASSERT_TRUE(Until([&] {
    keep_busy();
    before = right.Of(CompletionKind::kReceived, busy.right).size();
    return right.Of(CompletionKind::kReceived, quiet.right).size() == 1;
  }));
  EXPECT_LT(before, 4000u);
}

}  // namespace
}  // namespace phub::conformance
