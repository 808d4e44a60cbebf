// A worker that is admitted to a job and then misuses its queue pair, and one that was never
// admitted. Meanwhile another rank of the same job works. Its results stay exact, and only the
// attacker's own slots are ever written.
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

using ::testing::HasSubstr;

// A lane of another rank. The test has the client's end.
struct Attacker {
  std::unique_ptr<RawPeer> peer;
  std::unique_ptr<transport::VerbsConnection> connection;  // the daemon's end
  MappedMemory staging;
  std::vector<LandingSlot> table;
  ConnectionId id;
  wire::VerbsControl keys;
};

class LastSlotKey final : public transport::WorkRequestObserver {
 public:
  void OnPost(const ibv_send_wr& request) override {
    if (request.num_sge == 2) key = request.wr.rdma.rkey;
  }
  std::uint32_t key = 0;
};

class Hostile : public DirectTest {
 protected:
  void SetUp() override {
    DirectTest::SetUp();
    SeededRandom random(5);
    random.Fill({gradients.data(), gradients.bytes()});
    random.Fill({versions.data(), versions.bytes()});
    client.transport.Observe(&victims);
    ASSERT_NO_FATAL_FAILURE(VictimWorks());
  }

  // One round of the honest rank. Completions of other lanes are kept in `others`.
  void VictimWorks() {
    ++round;
    for (std::uint32_t chunk = 0; chunk < kLaneSlots; ++chunk) {
      std::memset(ChunkOf(parameters, chunk), 0, kLaneChunkBytes);
      ASSERT_EQ(Push(chunk, chunk, round), 1u);
    }
    std::size_t pushed = 0;
    ASSERT_TRUE(Until([&] {
      for (const Told& item : std::exchange(daemon_told, {})) {
        if (item.completion.connection != daemon_id) {
          others.push_back(item);
        } else if (item.completion.kind == CompletionKind::kReceived) {
          const std::uint32_t chunk = item.header.chunk.value;
          EXPECT_EQ(std::memcmp(item.payload, ChunkOf(gradients, chunk), kLaneChunkBytes), 0);
          EXPECT_EQ(Reply(chunk, round, item.header.reply_address), 1u);
          ++pushed;
        }
      }
      return pushed == kLaneSlots && client_told.size() == kLaneSlots;
    }));
    for (const Told& item : std::exchange(client_told, {})) {
      ASSERT_EQ(item.completion.kind, CompletionKind::kReceived);
    }
    for (std::uint32_t chunk = 0; chunk < kLaneSlots; ++chunk) {
      ASSERT_EQ(std::memcmp(ChunkOf(parameters, chunk), ChunkOf(versions, chunk), kLaneChunkBytes),
                0);
    }
  }

  Attacker Admit() { return Admit(Pages(kLaneSlots * kSlotStride), {}); }
  struct Patience {
    std::uint8_t ack_timeout = kGuestAckTimeout;
    std::uint32_t receives = 32;  // the attacker's
  };
  Attacker Admit(MappedMemory memory, const Patience& patience) {
    Attacker attacker;
    attacker.staging = std::move(memory);
    attacker.table.resize(kLaneSlots);
    for (std::uint32_t i = 0; i < kLaneSlots; ++i) {
      attacker.table[i] = {attacker.staging.data() + i * kSlotStride + wire::kSlotHeaderBytes,
                           kLaneChunkBytes, false};
    }
    attacker.peer = std::make_unique<RawPeer>(client.device, patience.receives);
    SystemRandom random;
    auto made = transport::VerbsConnection::Create(
        transport::VerbsEnd::kDaemon, daemon.queue, daemon.domain,
        {.data = attacker.staging.data(), .slot_count = kLaneSlots, .slot_bytes = kLaneChunkBytes},
        {.ack_timeout = patience.ack_timeout}, random);
    PHUB_CHECK(made.ok());
    attacker.connection = *std::move(made);
    PHUB_CHECK(attacker.connection->Connect(attacker.peer->Offer()).ok());
    attacker.peer->Connect(attacker.connection->Offer());
    attacker.id = daemon.transport.Adopt(*attacker.connection, attacker.table);
    return attacker;
  }
  void TakeKeys(Attacker& attacker) {
    // The daemon's transport must be polled before the first control word can be sent.
    attacker.peer->Do(IBV_WR_RDMA_WRITE_WITH_IMM, 0, 0, 0, transport::PackTaken(0, 0));
    for (int i = 0; i < 20; ++i) Poll();
    ASSERT_TRUE(Until([&] {
      return wire::DecodeVerbsControl({attacker.peer->inbox(), wire::kVerbsControlBytes},
                                      attacker.keys);
    }));
  }
  // Only the attacker's lane is closed. Its completion is kept in `trouble`.
  void ExpectCutOff(Attacker& attacker, TransportError error, ProtocolError protocol_error) {
    ASSERT_TRUE(Until([&] {
      for (const Told& item : std::exchange(daemon_told, {})) others.push_back(item);
      return Count(others, CompletionKind::kClosed) == 1;
    }));
    const Completion& closed = others.back().completion;
    EXPECT_EQ(closed.connection, attacker.id);
    EXPECT_STREQ(ToString(closed.error), ToString(error));
    EXPECT_STREQ(ToString(closed.protocol_error), ToString(protocol_error));
    others.clear();
    trouble = attacker.connection->Trouble();
    attacker.connection.reset();
  }

  LastSlotKey victims;
  std::uint64_t round = 0;
  std::vector<Told> others;
  std::string trouble;
};

TEST_F(Hostile, AnotherRanksKeyIsGoodForNothing) {
  const auto target = reinterpret_cast<std::uintptr_t>(staging.data());
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    Attacker attacker = Admit();
    TakeKeys(attacker);
    // It may write its own slots and inbox.
    EXPECT_EQ(attacker.peer->Do(IBV_WR_RDMA_WRITE,
                                reinterpret_cast<std::uintptr_t>(attacker.staging.data()),
                                attacker.keys.slots_key, 512, 0),
              IBV_WC_SUCCESS);
    const std::vector<std::byte> before(staging.data(), staging.data() + staging.bytes());
    std::memset(attacker.peer->memory(), 0xEE, RawPeer::kMemoryBytes);
    // The victim's own key and address, as if they had been guessed.
    ASSERT_NE(victims.key, 0u);
    EXPECT_NE(attacker.peer->Do(opcode, target, victims.key, 512, 0), IBV_WC_SUCCESS);
    EXPECT_EQ(attacker.peer->memory()[0], std::byte{0xEE}) << "nothing was read";
    EXPECT_TRUE(std::equal(before.begin(), before.end(), staging.data()));
    ExpectCutOff(attacker, TransportError::kReset, ProtocolError::kNone);
    EXPECT_THAT(trouble, HasSubstr("RDMA device rxe1 port 1 (10.77.0.2)"));
    ASSERT_NO_FATAL_FAILURE(VictimWorks());
  }
}

TEST_F(Hostile, KeysOfAnEarlierLaneOpenNothingOfTheNextOne) {
  Attacker before = Admit();
  ASSERT_NO_FATAL_FAILURE(TakeKeys(before));
  daemon.transport.Close(before.id);
  ASSERT_NO_FATAL_FAILURE(ExpectCutOff(before, TransportError::kLocalClosed, ProtocolError::kNone));
  // The rank comes back, in a later membership epoch: the same slots, with new windows.
  Attacker after = Admit(std::move(before.staging), {});
  ASSERT_NO_FATAL_FAILURE(TakeKeys(after));
  EXPECT_NE(after.keys.slots_key, before.keys.slots_key);
  const auto target = reinterpret_cast<std::uintptr_t>(after.staging.data());
  std::memset(after.staging.data(), 0x5A, after.staging.bytes());
  std::memset(before.peer->memory(), 0xEE, RawPeer::kMemoryBytes);
  std::memset(after.peer->memory(), 0xEE, RawPeer::kMemoryBytes);
  // Neither through the old queue pair, nor through the new one with the old key.
  EXPECT_NE(before.peer->Do(IBV_WR_RDMA_WRITE, target, before.keys.slots_key, 512, 0),
            IBV_WC_SUCCESS);
  EXPECT_NE(after.peer->Do(IBV_WR_RDMA_WRITE, target, before.keys.slots_key, 512, 0),
            IBV_WC_SUCCESS);
  EXPECT_TRUE(std::all_of(after.staging.data(), after.staging.data() + after.staging.bytes(),
                          [](std::byte byte) { return byte == std::byte{0x5A}; }));
  ASSERT_NO_FATAL_FAILURE(ExpectCutOff(after, TransportError::kReset, ProtocolError::kNone));
  ASSERT_NO_FATAL_FAILURE(VictimWorks());
}

TEST_F(Hostile, PeerThatVanishesIsNamedWithItsStatus) {
  constexpr std::uint8_t kBrief = 14;  // 8 times 67 ms
  Attacker attacker = Admit(Pages(kLaneSlots * kSlotStride), {.ack_timeout = kBrief});
  ASSERT_NO_FATAL_FAILURE(TakeKeys(attacker));
  attacker.peer.reset();  // no socket reports it
  SendRequest request;
  request.header = Header(wire::MessageKind::kParameters, 0, 1, 512);
  request.header.slot = SlotIndex{0};
  request.payload = {versions.data(), 512};
  request.connections = {&attacker.id, 1};
  ASSERT_EQ(daemon.transport.Post({&request, 1}), 1u);
  ASSERT_NO_FATAL_FAILURE(ExpectCutOff(attacker, TransportError::kReset, ProtocolError::kNone));
  EXPECT_THAT(trouble, HasSubstr("RDMA device rxe1 port 1 (10.77.0.2)"));
  EXPECT_THAT(trouble, HasSubstr("transport retry counter exceeded (status 12"));
  ASSERT_NO_FATAL_FAILURE(VictimWorks());
}

TEST_F(Hostile, PeerThatPostsNoReceivesIsGivenUp) {
  Attacker attacker = Admit(Pages(kLaneSlots * kSlotStride), {.receives = 0});
  attacker.peer->Do(IBV_WR_RDMA_WRITE_WITH_IMM, 0, 0, 0, transport::PackTaken(0, 0));
  // The daemon's keys find no receive request, and are retransmitted. Only Tick advances time.
  TimeNs now = kSecond;
  for (int i = 0; i < 50; ++i, now += kSecond) {
    Poll();
    daemon.transport.Tick(now);
    ASSERT_EQ(Count(daemon_told, CompletionKind::kClosed), 0u) << "not for seconds";
  }
  daemon.transport.Tick(now + 3600 * kSecond);
  ASSERT_NO_FATAL_FAILURE(ExpectCutOff(attacker, TransportError::kReset, ProtocolError::kNone));
  EXPECT_THAT(trouble, HasSubstr("receiver not ready"));
  ASSERT_NO_FATAL_FAILURE(VictimWorks());
}

TEST_F(Hostile, GuessedKeysOpenNothing) {
  // Each guess costs a queue pair. Guesses around keys that are known to exist, and anywhere.
  constexpr int kGuesses = 300;
  SeededRandom random(6);
  const auto target = reinterpret_cast<std::uintptr_t>(staging.data());
  const std::vector<std::byte> before(staging.data(), staging.data() + staging.bytes());
  for (int i = 0; i < kGuesses; ++i) {
    Attacker attacker = Admit();
    const auto near = static_cast<std::uint32_t>(random.Below(2048)) - 1024;
    const std::uint32_t guess =
        random.Chance(1, 2) ? victims.key + near : static_cast<std::uint32_t>(random.Next());
    attacker.peer->Do(IBV_WR_RDMA_WRITE_WITH_IMM, 0, 0, 0, transport::PackTaken(0, 0));
    EXPECT_NE(attacker.peer->Do(IBV_WR_RDMA_WRITE, target + random.Below(4096), guess, 64, 0),
              IBV_WC_SUCCESS);
    ASSERT_NO_FATAL_FAILURE(ExpectCutOff(attacker, TransportError::kReset, ProtocolError::kNone));
  }
  EXPECT_TRUE(std::equal(before.begin(), before.end(), staging.data()));
  ASSERT_NO_FATAL_FAILURE(VictimWorks());
}

TEST_F(Hostile, ImmediatesThatNameWhatIsNotItsOwnEndItsLane) {
  using transport::ImmediateKind;
  struct Case {
    const char* name;
    ibv_wr_opcode opcode;
    std::uint32_t immediate;
    std::uint32_t bytes;  // into its own inbox
    ProtocolError expected;
  };
  const auto inbox = [](std::uint32_t unit) {
    return transport::PackInbox({.placed = false, .control = false, .unit = unit});
  };
  const Case cases[] = {
      {"slot", IBV_WR_RDMA_WRITE_WITH_IMM, transport::PackSlot({kLaneSlots}), 0,
       ProtocolError::kImmediate},
      {"slot far away", IBV_WR_RDMA_WRITE_WITH_IMM,
       transport::PackImmediate(ImmediateKind::kSlot, (1u << 30) - 1), 0,
       ProtocolError::kImmediate},
      {"slot without a header", IBV_WR_RDMA_WRITE_WITH_IMM, transport::PackSlot({1}), 0,
       ProtocolError::kMagic},
      {"reply", IBV_WR_RDMA_WRITE_WITH_IMM,
       transport::PackReply({0}, numeric::ElementType::kF32, {1}), 0, ProtocolError::kImmediate},
      {"inbox out of step", IBV_WR_RDMA_WRITE_WITH_IMM, inbox(3), 64, ProtocolError::kRing},
      {"inbox far away", IBV_WR_RDMA_WRITE_WITH_IMM, inbox((1u << 28) - 1), 64,
       ProtocolError::kRing},
      {"empty inbox", IBV_WR_RDMA_WRITE_WITH_IMM, inbox(0), 0, ProtocolError::kRing},
      {"noise in the inbox", IBV_WR_RDMA_WRITE_WITH_IMM, inbox(0), 64, ProtocolError::kMagic},
      {"noise as control", IBV_WR_RDMA_WRITE_WITH_IMM,
       transport::PackInbox({.placed = false, .control = true, .unit = 0}), 64,
       ProtocolError::kRing},
      {"took what was not sent", IBV_WR_RDMA_WRITE_WITH_IMM, transport::PackTaken(1000, 0), 0,
       ProtocolError::kRing},
      {"a send", IBV_WR_SEND, 0, 0, ProtocolError::kKind},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    Attacker attacker = Admit();
    ASSERT_NO_FATAL_FAILURE(TakeKeys(attacker));
    std::memset(attacker.peer->memory(), 0xEE, RawPeer::kMemoryBytes);
    const std::uint64_t remote = attacker.connection->Offer().inbox_address;
    attacker.peer->Do(one.opcode, remote, attacker.keys.inbox_key, one.bytes, one.immediate);
    ASSERT_NO_FATAL_FAILURE(ExpectCutOff(attacker, TransportError::kProtocol, one.expected));
  }
  EXPECT_EQ(daemon.transport.counters().immediates_refused.Get(), 3u);
  ASSERT_NO_FATAL_FAILURE(VictimWorks());
}

TEST_F(Hostile, FloodOfEmptyWordsEndsItsLane) {
  Attacker attacker = Admit();
  ASSERT_NO_FATAL_FAILURE(TakeKeys(attacker));
  for (int i = 0; i < 400 && Count(others, CompletionKind::kClosed) == 0; ++i) {
    attacker.peer->Do(IBV_WR_RDMA_WRITE_WITH_IMM, 0, 0, 0, transport::PackTaken(0, 0));
    Poll();
    for (const Told& item : std::exchange(daemon_told, {})) others.push_back(item);
  }
  ExpectCutOff(attacker, TransportError::kProtocol, ProtocolError::kDoorbell);
  ASSERT_NO_FATAL_FAILURE(VictimWorks());
}

TEST_F(Hostile, QueuePairThatNobodyAdmittedDoesNotGetIn) {
  // It knows the victim's queue pair, key and address, and guesses its packet sequence numbers.
  SeededRandom random(7);
  const auto target = reinterpret_cast<std::uintptr_t>(staging.data());
  const std::vector<std::byte> before(staging.data(), staging.data() + staging.bytes());
  for (int i = 0; i < 30; ++i) {
    RawPeer peer(client.device);
    peer.Connect(ours->Offer(), static_cast<std::uint32_t>(random.Next()) & 0xFFFFFF);
    std::memset(peer.memory(), 0xEE, RawPeer::kMemoryBytes);
    EXPECT_NE(peer.Do(IBV_WR_RDMA_WRITE, target, victims.key, 512, 0), IBV_WC_SUCCESS);
  }
  EXPECT_TRUE(std::equal(before.begin(), before.end(), staging.data()));
  ASSERT_NO_FATAL_FAILURE(VictimWorks());
}

}  // namespace
}  // namespace phub::verbs_tests
