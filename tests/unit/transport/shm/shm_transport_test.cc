// Features of shared memory only: payload that is not moved, and addresses for it.
#include "common/transport/shm/shm_transport.h"

#include "tests/support/allocation_counter.h"
#include "tests/unit/transport/shm/shm_fixture.h"

namespace phub::transport {
namespace {

using Bytes = std::vector<std::byte>;
using wire::MessageKind;

class ShmTransportTest : public ShmPairTest {
 protected:
  bool Push(const wire::MessageHeader& header, std::span<const std::byte> payload,
            bool notify_sent = false) {
    const SendRequest request{.header = header,
                              .payload = payload,
                              .connections = {&worker_id, 1},
                              .notify_sent = notify_sent};
    const bool taken = worker.Post({&request, 1}) == 1;
    Completion none[4];
    worker_told = worker.Poll(none);
    return taken;
  }
  bool Reply(const wire::MessageHeader& header, std::span<const std::byte> payload) {
    const SendRequest request{.header = header, .payload = payload, .connections = {&daemon_id, 1}};
    const bool taken = daemon.Post({&request, 1}) == 1;
    Completion none[4];
    EXPECT_EQ(daemon.Poll(none), 0u);
    return taken;
  }
  void ExpectBroken(Transport& transport, ProtocolError error) {
    Completion closed;
    ASSERT_TRUE(PollFor(transport, CompletionKind::kClosed, closed));
    EXPECT_EQ(closed.error, TransportError::kProtocol);
    EXPECT_STREQ(ToString(closed.protocol_error), ToString(error));
  }

  std::size_t worker_told = 0;
};

TEST_F(ShmTransportTest, GradientInARegionIsHandedOverWhereItLies) {
  std::byte* const gradient = rank.worker.workers->data() + 4096;
  std::fill_n(gradient, 3000, std::byte{9});
  ASSERT_TRUE(Push(Header(MessageKind::kGradient, kNoSlot, 3000), {gradient, 3000}, true));
  EXPECT_EQ(worker_told, 1u) << "sent: the peer was told";
  Completion got;
  ASSERT_TRUE(PollFor(daemon, CompletionKind::kReceived, got));
  EXPECT_EQ(got.message->payload, rank.worker.daemons->data() + 4096);
  // Expect: no copy was made, so the worker's later changes are visible.
  gradient[2999] = std::byte{10};
  EXPECT_EQ(got.message->payload[2999], std::byte{10});
}

TEST_F(ShmTransportTest, GradientWrittenIntoItsSlotIsOnlyAnnounced) {
  std::byte* const slot = worker.PeerSlot(worker_id, SlotIndex{2});
  ASSERT_NE(slot, nullptr);
  std::fill_n(slot, kShmSlotBytes, std::byte{7});
  ASSERT_TRUE(
      Push(Header(MessageKind::kGradient, SlotIndex{2}, kShmSlotBytes), {slot, kShmSlotBytes}));
  slot[17] = std::byte{8};
  Completion got;
  ASSERT_TRUE(PollFor(daemon, CompletionKind::kReceived, got));
  EXPECT_EQ(got.message->payload, landing[2].data);
  EXPECT_EQ(landing[2].data[17], std::byte{8});
  EXPECT_EQ(worker.PeerSlot(worker_id, SlotIndex{kShmSlots}), nullptr);
  EXPECT_EQ(worker.PeerSlot(worker_id, kNoSlot), nullptr);
  EXPECT_EQ(daemon.PeerSlot(daemon_id, SlotIndex{0}), nullptr);
}

TEST_F(ShmTransportTest, PayloadOfAnotherSlotOrOfAReadOnlyRegionIsCopied) {
  // The payload is in slot 1 and goes to slot 3; or it is in memory that the worker may only read.
  std::byte* const slot = worker.PeerSlot(worker_id, SlotIndex{1});
  std::fill_n(slot, 2000, std::byte{3});
  rank.parameters.daemons->data()[5] = std::byte{4};
  ASSERT_TRUE(Push(Header(MessageKind::kGradient, SlotIndex{3}, 2000), {slot, 2000}));
  ASSERT_TRUE(Push(Header(MessageKind::kGradient, SlotIndex{0}, 1000),
                   {rank.parameters.workers->data(), 1000}));
  Completion got;
  ASSERT_TRUE(PollFor(daemon, CompletionKind::kReceived, got));
  EXPECT_EQ(landing[3].data[1999], std::byte{3});
  ASSERT_TRUE(PollFor(daemon, CompletionKind::kReceived, got));
  EXPECT_EQ(landing[0].data[5], std::byte{4});
}

TEST_F(ShmTransportTest, EmptyGradientsNeedNoSlot) {
  ASSERT_TRUE(Push(Header(MessageKind::kGradient, kNoSlot, 0), {}));
  Completion got;
  ASSERT_TRUE(PollFor(daemon, CompletionKind::kReceived, got));
  EXPECT_EQ(got.message->payload, nullptr);
}

TEST_F(ShmTransportTest, GradientOfOrdinaryMemoryNeedsASlot) {
  const Bytes gradient(500);
  ASSERT_TRUE(Push(Header(MessageKind::kGradient, kNoSlot, gradient.size()), gradient));
  ExpectBroken(daemon, ProtocolError::kSlotRange);
}

TEST_F(ShmTransportTest, ParametersAreReadWhereTheyLieOrCopiedOnce) {
  std::byte* const parameters = rank.parameters.daemons->data() + 640;
  std::fill_n(parameters, 1000, std::byte{5});
  // The worker keeps its own copy.
  ASSERT_TRUE(Reply(Header(MessageKind::kParameters, SlotIndex{0}, 1000), {parameters, 1000}));
  Completion got;
  ASSERT_TRUE(PollFor(worker, CompletionKind::kReceived, got));
  EXPECT_EQ(got.message->payload, parameters_here.data());
  EXPECT_EQ(parameters_here[999], std::byte{5});
  EXPECT_EQ(parameters_here[1000], std::byte{0});
  worker.Release({&got, 1});
  // Or it reads them in the region.
  worker_landing[0] = {rank.parameters.workers->data() + 640, 1000, /*read_only=*/true};
  ASSERT_TRUE(Reply(Header(MessageKind::kParameters, SlotIndex{0}, 1000), {parameters, 1000}));
  ASSERT_TRUE(PollFor(worker, CompletionKind::kReceived, got));
  EXPECT_EQ(got.message->payload, worker_landing[0].data);
  // Payload from elsewhere cannot be put there.
  ASSERT_TRUE(Reply(Header(MessageKind::kParameters, SlotIndex{0}, 900), {parameters + 64, 900}));
  ExpectBroken(worker, ProtocolError::kSlotReadOnly);
}

TEST_F(ShmTransportTest, PayloadInTheRecordIsRefusedByAReadOnlySlot) {
  worker_landing[0].read_only = true;
  ASSERT_TRUE(Reply(Header(MessageKind::kParameters, SlotIndex{0}, 50), Bytes(50)));
  ExpectBroken(worker, ProtocolError::kSlotReadOnly);
}

TEST_F(ShmTransportTest, PayloadInTheArenaIsRefusedByAReadOnlySlot) {
  worker_landing[0].read_only = true;
  ASSERT_TRUE(Reply(Header(MessageKind::kParameters, SlotIndex{0}, 3000), Bytes(3000)));
  ExpectBroken(worker, ProtocolError::kSlotReadOnly);
}

TEST_F(ShmTransportTest, ReplyWrittenIntoTheWorkersRegionIsOnlyAnnounced) {
  std::byte* const wanted = rank.worker.workers->data() + 1024;
  const SharedAddress address = worker.AddressOf(worker_id, wanted, 512);
  std::byte* const there = daemon.Resolve(daemon_id, address, 512);
  ASSERT_EQ(there, rank.worker.daemons->data() + 1024);
  std::fill_n(there, 512, std::byte{6});
  worker_landing[0] = {wanted, 512, /*read_only=*/true};
  ASSERT_TRUE(Reply(Header(MessageKind::kParameters, SlotIndex{0}, 512), {there, 512}));
  Completion got;
  ASSERT_TRUE(PollFor(worker, CompletionKind::kReceived, got));
  EXPECT_EQ(wanted[511], std::byte{6});
  // No address resolves for connections that are gone, or outside of regions.
  EXPECT_EQ(daemon.Resolve(daemon_id, address, kRegionBytes), nullptr);
  EXPECT_EQ(worker.AddressOf(worker_id, parameters_here.data(), 1), SharedAddress{});
  EXPECT_EQ(daemon.Resolve({}, address, 512), nullptr);
  EXPECT_EQ(worker.AddressOf({}, wanted, 512), SharedAddress{});
}

TEST_F(ShmTransportTest, WhatAClosingLaneNamesIsFoundUntilTheNextPoll) {
  std::byte* const wanted = rank.worker.workers->data();
  const SharedAddress address = worker.AddressOf(worker_id, wanted, 512);
  ASSERT_TRUE(Push(Header(MessageKind::kGradient, kNoSlot, 512), {wanted, 512}));
  Completion completions[32];
  EXPECT_EQ(worker.Poll(completions), 0u);
  worker.Close(worker_id);
  ASSERT_EQ(worker.Poll(completions), 1u);
  // Receive: in one Poll, the gradient and the end of the lane that it came on.
  std::size_t polled = 0;
  for (int i = 0; i < 100000 && polled == 0; ++i) {
    daemon.Tick(static_cast<TimeNs>(i) * kSecond);
    polled = daemon.Poll(completions);
  }
  ASSERT_EQ(polled, 2u);
  EXPECT_EQ(completions[0].kind, CompletionKind::kReceived);
  EXPECT_EQ(completions[1].kind, CompletionKind::kClosed);
  EXPECT_EQ(daemon.Resolve(daemon_id, address, 512), rank.worker.daemons->data());
  daemon.Release({completions, polled});
  EXPECT_EQ(daemon.Poll(completions), 0u);
  EXPECT_EQ(daemon.Resolve(daemon_id, address, 512), nullptr);
}

TEST_F(ShmTransportTest, FullRingHoldsBackWithoutLoss) {
  // Many more than the ring's 8 records, before the daemon polls.
  std::byte* const region = rank.worker.workers->data();
  for (std::uint32_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(Push(Header(MessageKind::kGradient, kNoSlot, 8 + i), {region + 8 * i, 8 + i}));
  }
  Completion completions[32];
  std::size_t got = 0;
  while (got < 100) {
    const std::size_t polled = daemon.Poll(completions);
    for (std::size_t i = 0; i < polled; ++i, ++got) {
      EXPECT_EQ(completions[i].message->payload, rank.worker.daemons->data() + 8 * got);
      EXPECT_EQ(completions[i].message->header.payload_bytes, 8 + got);
    }
    daemon.Release({completions, polled});
    EXPECT_EQ(worker.Poll(completions), 0u);
  }
}

TEST_F(ShmTransportTest, NothingAllocatesAndEveryLaneIsFound) {
  // More lanes than one Poll visits.
  constexpr std::size_t kLanes = 150;
  ShmTransport daemons(kLanes);
  ShmTransport workers(kLanes);
  std::vector<std::unique_ptr<ShmConnection>> connections;
  std::vector<ConnectionId> from;
  for (std::size_t i = 0; i < kLanes; ++i) {
    Offered offered(rank.lane(), limits);
    connections.push_back(std::move(offered.daemon));
    ASSERT_NE(daemons.Adopt(*connections.back(), landing), ConnectionId{});
    connections.push_back(offered.Accept(rank.workers, limits));
    from.push_back(workers.Adopt(*connections.back(), worker_landing));
  }
  const std::size_t before = phub::testing::AllocationCount();
  Completion completions[64];
  for (int round = 0; round < 20; ++round) {
    std::byte* const region = rank.worker.workers->data();
    const SendRequest request{.header = Header(MessageKind::kGradient, kNoSlot, 64),
                              .payload = {region, 64},
                              .connections = from};
    ASSERT_EQ(workers.Post({&request, 1}), 1u);
    std::size_t got = 0;
    for (int polls = 0; polls < 100000 && got < kLanes; ++polls) {
      EXPECT_EQ(workers.Poll(completions), 0u);
      const std::size_t polled = daemons.Poll(completions);
      got += polled;
      daemons.Release({completions, polled});
    }
    ASSERT_EQ(got, kLanes);
  }
  EXPECT_EQ(phub::testing::AllocationCount(), before);
}

}  // namespace
}  // namespace phub::transport
