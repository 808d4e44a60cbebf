// A lane between the daemons of two racks: partial sums and results both ways, from registered
// memory, through the inboxes to their places. Only the other end can write there.
#include <gmock/gmock.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <cstring>

#include "common/base/random.h"
#include "common/transport/verbs/immediate.h"
#include "tests/verbs/direct_fixture.h"
#include "tests/verbs/raw_peer.h"

namespace phub::verbs_tests {
namespace {

// Per chunk: a place for the sum and one for the result.
constexpr std::uint32_t kEntries = 2 * kLaneChunks;

// `client` is the daemon that dials.
class RacksLane : public DirectTest {
 protected:
  struct Side {
    MappedMemory sums = Pages(kLaneChunks * kLaneChunkBytes);  // sent from here; registered
    MappedMemory landing = Pages(kEntries * kLaneChunkBytes);  // received here
    std::vector<LandingSlot> table = std::vector<LandingSlot>(kEntries);
  };

  void SetUp() override {
    SeededRandom random(9);
    for (Side* side : {&granter, &dialer}) random.Fill({side->sums.data(), side->sums.bytes()});
    Register(daemon, granter.sums, Use::kSend);
    Register(client, dialer.sums, Use::kSend);
    // Pieces are a quarter of the inbox: whole chunks, and some that are not.
    std::tie(ours, theirs) =
        ConnectVerbs(daemon, client, {.inbox_bytes = 128 * 1024, .ack_timeout = kGuestAckTimeout},
                     {}, transport::VerbsEnd::kDialer);
    daemon_id = daemon.transport.Adopt(*ours, granter.table);
    client_id = client.transport.Adopt(*theirs, dialer.table);
  }

  static std::byte* PlaceOf(const Side& side, std::uint32_t entry) {
    return side.landing.data() + std::size_t{entry} * kLaneChunkBytes;
  }
  static void OpenPlaces(Side& side) {
    for (std::uint32_t i = 0; i < kEntries; ++i) {
      side.table[i] = {PlaceOf(side, i), kLaneChunkBytes, false};
    }
  }
  // Sends a partial sum (kGradient) or a result (kParameters), as ExchangeStage does.
  static std::size_t Send(VerbsHost& host, const ConnectionId& id, const Side& side,
                          wire::MessageKind kind, std::uint32_t chunk,
                          std::size_t bytes = kLaneChunkBytes) {
    const bool is_sum = kind == wire::MessageKind::kGradient;
    SendRequest request;
    request.header = Header(kind, chunk, 1, bytes);
    request.header.slot = SlotIndex{2 * chunk + (is_sum ? 0 : 1)};
    // In a sum, this field is the hash of the record, whatever its value.
    if (is_sum) request.header.reply_address = SharedAddress{kHash + chunk};
    request.payload = {side.sums.data() + std::size_t{chunk} * kLaneChunkBytes, bytes};
    request.connections = {&id, 1};
    request.cookie = request.header.slot.value;
    request.notify_sent = true;
    return host.transport.Post({&request, 1});
  }
  static void ExpectArrived(const std::vector<Told>& told, const Side& from, const Side& to) {
    std::vector<bool> seen(kEntries, false);
    for (const Told& item : told) {
      if (item.completion.kind != CompletionKind::kReceived) continue;
      const std::uint32_t chunk = item.header.chunk.value;
      const std::uint32_t entry = item.header.slot.value;
      ASSERT_LT(entry, kEntries);
      EXPECT_FALSE(seen[entry]);
      seen[entry] = true;
      EXPECT_EQ(item.payload, PlaceOf(to, entry));
      EXPECT_EQ(std::memcmp(item.payload, from.sums.data() + chunk * kLaneChunkBytes,
                            item.header.payload_bytes),
                0);
      const bool is_sum = item.header.kind == wire::MessageKind::kGradient;
      EXPECT_EQ(item.header.reply_address.value, is_sum ? kHash + chunk : 0u);
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), true), kEntries);
  }

  // A value that would be an address in the first region of a peer, if it were one.
  static constexpr std::uint64_t kHash = std::uint64_t{1} << 48;
  Side granter;
  Side dialer;
};

TEST_F(RacksLane, SumsAndResultsGoBothWays) {
  OpenPlaces(granter);
  OpenPlaces(dialer);
  for (std::uint32_t chunk = 0; chunk < kLaneChunks; ++chunk) {
    for (const auto kind : {wire::MessageKind::kGradient, wire::MessageKind::kParameters}) {
      ASSERT_EQ(Send(client, client_id, dialer, kind, chunk), 1u);
      ASSERT_EQ(Send(daemon, daemon_id, granter, kind, chunk), 1u);
    }
  }
  ASSERT_TRUE(Until([&] {
    return Count(daemon_told, CompletionKind::kReceived) == kEntries &&
           Count(client_told, CompletionKind::kReceived) == kEntries &&
           Count(daemon_told, CompletionKind::kSent) == kEntries &&
           Count(client_told, CompletionKind::kSent) == kEntries;
  }));
  ExpectArrived(daemon_told, dialer, granter);
  ExpectArrived(client_told, granter, dialer);
  // Copied once, on arrival.
  for (const VerbsHost* host : {&daemon, &client}) {
    EXPECT_EQ(host->transport.counters().sends_copied.Get(), 0u);
    EXPECT_EQ(host->transport.counters().receives_copied.Get(), kEntries);
    EXPECT_EQ(host->transport.counters().bytes_copied.Get(),
              std::uint64_t{kEntries} * kLaneChunkBytes);
  }
}

// The inbox holds three chunks, and the peer receives none: the rest waits, and nothing is lost.
TEST_F(RacksLane, MoreThanTheInboxHoldsWaits) {
  OpenPlaces(granter);
  for (std::uint32_t chunk = 0; chunk < kLaneChunks; ++chunk) {
    for (const auto kind : {wire::MessageKind::kGradient, wire::MessageKind::kParameters}) {
      ASSERT_EQ(Send(client, client_id, dialer, kind, chunk), 1u);
    }
  }
  for (int i = 0; i < 200; ++i) PollOne(client.transport, client_told);
  EXPECT_LT(Count(client_told, CompletionKind::kSent), kEntries);
  ASSERT_TRUE(Until([&] { return Count(daemon_told, CompletionKind::kReceived) == kEntries; }));
  ExpectArrived(daemon_told, dialer, granter);
}

TEST_F(RacksLane, WhatIsNotDueIsRefusedAndNothingIsWritten) {
  OpenPlaces(granter);
  granter.table[2] = {};  // chunk 1's sum is not due
  std::memset(granter.landing.data(), 0x5A, granter.landing.bytes());
  ASSERT_EQ(Send(client, client_id, dialer, wire::MessageKind::kGradient, 1), 1u);
  ASSERT_TRUE(Until([&] { return Count(daemon_told, CompletionKind::kClosed) == 1; }));
  EXPECT_EQ(daemon_told.back().completion.protocol_error, ProtocolError::kSlotClosed);
  EXPECT_TRUE(std::all_of(granter.landing.data(), granter.landing.data() + granter.landing.bytes(),
                          [](std::byte byte) { return byte == std::byte{0x5A}; }));
}

// The dialling end uses the job's domain, as the lanes of the job's workers do. A worker that knows
// the inbox's key and address cannot write to it.
TEST_F(RacksLane, AWorkersLaneDoesNotReachTheInboxOfTheEndThatDials) {
  OpenPlaces(dialer);
  ASSERT_EQ(Send(daemon, daemon_id, granter, wire::MessageKind::kGradient, 0), 1u);
  ASSERT_TRUE(Until([&] { return Count(client_told, CompletionKind::kReceived) == 1; }));
  const wire::VerbsOffer target = theirs->Offer();
  ASSERT_NE(target.inbox_key, 0u);
  auto* const inbox = reinterpret_cast<const std::byte*>(target.inbox_address);
  const std::vector<std::byte> before(inbox, inbox + target.inbox_bytes);

  RawPeer worker(daemon.device);
  SystemRandom random;
  auto lane =
      transport::VerbsConnection::Create(transport::VerbsEnd::kDaemon, client.queue, client.domain,
                                         {}, {.ack_timeout = kGuestAckTimeout}, random);
  ASSERT_TRUE(lane.ok());
  ASSERT_TRUE((*lane)->Connect(worker.Offer()).ok());
  worker.Connect((*lane)->Offer());
  std::vector<LandingSlot> none;
  const ConnectionId id = client.transport.Adopt(**lane, none);
  std::memset(worker.memory(), 0xEE, RawPeer::kMemoryBytes);
  EXPECT_EQ(worker.Do(IBV_WR_RDMA_WRITE, target.inbox_address, target.inbox_key, 512, 0),
            IBV_WC_REM_ACCESS_ERR);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), inbox));
  client.transport.Close(id);
  ASSERT_TRUE(Until([&] { return Count(client_told, CompletionKind::kClosed) == 1; }));

  // The lane between the racks still works.
  ASSERT_EQ(Send(daemon, daemon_id, granter, wire::MessageKind::kGradient, 1), 1u);
  ASSERT_TRUE(Until([&] { return Count(client_told, CompletionKind::kReceived) == 2; }));
}

}  // namespace
}  // namespace phub::verbs_tests
