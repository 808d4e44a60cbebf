// Workers that write arbitrary data into their lane's memory: their lane ends with the error that
// names the violation, and no other lane does.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <thread>

#include "common/base/clock.h"
#include "common/base/random.h"
#include "tests/unit/transport/shm/shm_fixture.h"

namespace phub::transport {
namespace {

using wire::MessageKind;
using Bytes = std::vector<std::byte>;
constexpr ShmLimits kLimits{.ring_records = 8, .arena_bytes = 4096};

class ShmHostileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Offered honest(rank.lane(), kLimits);
    bystander_daemon = std::move(honest.daemon);
    bystander_worker = honest.Accept(rank.workers, kLimits);
    bystander_id = daemon.Adopt(*bystander_daemon, rank_landing);
    bystander_worker_id = worker.Adopt(*bystander_worker, {});
  }
  // Adds a hostile lane next to the honest one.
  RawWorker& Attack() {
    Offered offered(attacker_rank.lane(), kLimits);
    connections.push_back(std::move(offered.daemon));
    attackers.push_back(std::make_unique<RawWorker>(offered));
    attacked = daemon.Adopt(*connections.back(), landing);
    return *attackers.back();
  }
  Completion WaitClosed() {
    Completion closed;
    EXPECT_TRUE(PollFor(daemon, CompletionKind::kClosed, closed));
    EXPECT_EQ(closed.connection, attacked);
    return closed;
  }
  void ExpectBroken(ProtocolError error) {
    const Completion closed = WaitClosed();
    EXPECT_EQ(closed.error, TransportError::kProtocol);
    EXPECT_STREQ(ToString(closed.protocol_error), ToString(error));
    ExpectBystanderServed();
  }
  void ExpectBystanderServed() {
    const SendRequest request{.header = Header(MessageKind::kGradient, kNoSlot, 100),
                              .payload = {rank.worker.workers->data(), 100},
                              .connections = {&bystander_worker_id, 1}};
    ASSERT_EQ(worker.Post({&request, 1}), 1u);
    Completion completion;
    EXPECT_EQ(worker.Poll({&completion, 1}), 0u);
    ASSERT_TRUE(PollFor(daemon, CompletionKind::kReceived, completion));
    EXPECT_EQ(completion.connection, bystander_id);
    daemon.Release({&completion, 1});
  }
  RingRecord ArenaRecord(std::size_t bytes) const {
    return Record(Header(MessageKind::kGradient, SlotIndex{1}, bytes), PayloadPlace::kArena);
  }

  RankMemory rank;
  RankMemory attacker_rank;
  std::vector<LandingSlot> rank_landing = rank.landing();
  std::vector<LandingSlot> landing = attacker_rank.landing();
  std::unique_ptr<ShmConnection> bystander_daemon;
  std::unique_ptr<ShmConnection> bystander_worker;
  std::vector<std::unique_ptr<ShmConnection>> connections;
  std::vector<std::unique_ptr<RawWorker>> attackers;
  ShmTransport daemon{16};
  ShmTransport worker{4};
  ConnectionId bystander_id;
  ConnectionId bystander_worker_id;
  ConnectionId attacked;
};

TEST_F(ShmHostileTest, RecordsThatAreWrongCloseTheLane) {
  const auto gradient = [](SlotIndex slot, std::size_t bytes) {
    return Header(MessageKind::kGradient, slot, bytes);
  };
  const auto changed = [&](std::size_t at, int value) {
    RingRecord record = ArenaRecord(100);
    record.header[at] = static_cast<std::byte>(value);
    return record;
  };
  RingRecord unknown_place = ArenaRecord(100);
  unknown_place.place = 5;
  RingRecord huge_place = ArenaRecord(100);
  huge_place.place = UINT64_MAX;
  const auto region = [&](std::uint32_t index, std::size_t offset, std::size_t bytes) {
    return Record(gradient(kNoSlot, bytes), PayloadPlace::kRegion,
                  SharedRegions::Pack(index, offset));
  };
  const struct {
    const char* name;
    ProtocolError expected;
    RingRecord record;
  } cases[] = {
      {"magic", ProtocolError::kMagic, changed(0, 'X')},
      {"version", ProtocolError::kVersion, changed(2, wire::kLaneVersion + 1)},
      {"kind", ProtocolError::kKind, changed(3, 200)},
      {"operation", ProtocolError::kOperation, changed(48, 9)},
      {"type", ProtocolError::kType, changed(49, 200)},
      {"flag", ProtocolError::kReserved, changed(50, 2)},
      {"reserved", ProtocolError::kReserved, changed(51, 1)},
      {"too long", ProtocolError::kPayloadBytes,
       Record(gradient(SlotIndex{1}, kChunkBytesMax + 1), PayloadPlace::kArena)},
      {"slot out of range", ProtocolError::kSlotRange,
       Record(gradient(SlotIndex{kShmSlots}, 100), PayloadPlace::kArena)},
      {"no slot, arena", ProtocolError::kSlotRange,
       Record(gradient(kNoSlot, 100), PayloadPlace::kArena)},
      {"no slot, record", ProtocolError::kSlotRange,
       Record(gradient(kNoSlot, 50), PayloadPlace::kRecord)},
      {"slot too small", ProtocolError::kSlotBytes, ArenaRecord(kShmSlotBytes + 1)},
      {"place unknown", ProtocolError::kSharedRange, unknown_place},
      {"place huge", ProtocolError::kSharedRange, huge_place},
      {"bytes without place", ProtocolError::kPayloadBytes,
       Record(gradient(SlotIndex{1}, 100), PayloadPlace::kNone)},
      {"place without bytes", ProtocolError::kPayloadBytes, region(0, 0, 0)},
      {"record holds less", ProtocolError::kPayloadBytes,
       Record(gradient(SlotIndex{1}, wire::kInlineBytesMax + 1), PayloadPlace::kRecord)},
      {"hyper-parameters in the arena", ProtocolError::kSharedRange,
       Record(Header(MessageKind::kHyperParameters, kNoSlot, 96), PayloadPlace::kArena)},
      {"hyper-parameters in a region", ProtocolError::kSharedRange,
       Record(Header(MessageKind::kHyperParameters, kNoSlot, 96), PayloadPlace::kRegion,
              SharedRegions::Pack(0, 0))},
      {"no region", ProtocolError::kSharedRange,
       Record(gradient(kNoSlot, 100), PayloadPlace::kRegion)},
      {"region unknown", ProtocolError::kSharedRange, region(2, 0, 100)},
      {"region of the job's parameters", ProtocolError::kSharedRange, region(1, 0, 100)},
      {"past the region's end", ProtocolError::kSharedRange, region(0, kRegionBytes - 99, 100)},
      {"far past the region's end", ProtocolError::kSharedRange,
       region(0, (std::size_t{1} << 48) - 50, 100)},
      {"in a slot that is none", ProtocolError::kSharedRange,
       Record(gradient(kNoSlot, 100), PayloadPlace::kSlot)},
      {"past the slot's end", ProtocolError::kSharedRange,
       Record(gradient(SlotIndex{1}, kShmSlotBytes + 1), PayloadPlace::kSlot)},
  };
  for (const auto& item : cases) {
    SCOPED_TRACE(item.name);
    Attack().Put(item.record);
    ExpectBroken(item.expected);
  }
}

TEST_F(ShmHostileTest, IndicesThatJumpCloseTheLane) {
  const std::uint64_t jumps[] = {9, 1000, std::uint64_t{1} << 32, UINT64_MAX};
  for (const std::uint64_t jump : jumps) {
    SCOPED_TRACE(jump);
    Attack().SetWritten({jump, 0});
    ExpectBroken(ProtocolError::kRing);
  }
  for (const std::uint64_t jump : {std::uint64_t{4097}, UINT64_MAX}) {
    SCOPED_TRACE(jump);
    RawWorker& attacker = Attack();
    attacker.written.bytes = jump;
    attacker.Put(ArenaRecord(100));
    ExpectBroken(ProtocolError::kRing);
  }
}

TEST_F(ShmHostileTest, IndicesThatGoBackCloseTheLane) {
  RawWorker& attacker = Attack();
  attacker.Put(Record(Header(MessageKind::kCredit, SlotIndex{0}, 0), PayloadPlace::kNone));
  Completion got;
  ASSERT_TRUE(PollFor(daemon, CompletionKind::kReceived, got));
  daemon.Release({&got, 1});
  attacker.SetWritten({0, 0});
  ExpectBroken(ProtocolError::kRing);
}

TEST_F(ShmHostileTest, ReadingWhatWasNeverWrittenClosesTheLane) {
  for (const RingPosition read : {RingPosition{9, 0}, RingPosition{UINT64_MAX, 0},
                                  RingPosition{0, 1 << 20}, RingPosition{0, UINT64_MAX}}) {
    SCOPED_TRACE(read.records + read.bytes);
    RawWorker& attacker = Attack();
    // The daemon sends until the ring is full, so it reads the worker's index.
    const Bytes parameters(3000);
    for (int i = 0; i < 12; ++i) {
      const SendRequest request{.header = Header(MessageKind::kParameters, SlotIndex{0}, 3000),
                                .payload = parameters,
                                .connections = {&attacked, 1}};
      ASSERT_EQ(daemon.Post({&request, 1}), 1u);
    }
    attacker.SetRead(read);
    ExpectBroken(ProtocolError::kRing);
  }
}

TEST_F(ShmHostileTest, HalfAMessageIsALossNotABreach) {
  RawWorker& attacker = Attack();
  attacker.Put(ArenaRecord(100));
  attacker.PutBytes(Bytes(60));
  Completion none;
  for (int i = 0; i < 100; ++i) EXPECT_EQ(daemon.Poll({&none, 1}), 0u);
  attacker.socket.Reset();
  const Completion closed = WaitClosed();
  EXPECT_EQ(closed.error, TransportError::kPeerClosed);
  EXPECT_EQ(closed.protocol_error, ProtocolError::kTruncated);
  ExpectBystanderServed();
}

TEST_F(ShmHostileTest, SlotThatIsTakenAwayDuringItsPayloadEndsTheConnection) {
  RawWorker& attacker = Attack();
  attacker.Put(ArenaRecord(100));
  attacker.PutBytes(Bytes(60));
  Completion none;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(daemon.Poll({&none, 1}), 0u);
  landing[1] = {};
  attacker.PutBytes(Bytes(40));
  ExpectBroken(ProtocolError::kSlotClosed);
}

TEST_F(ShmHostileTest, MemoryCannotBeTakenAwayButEmptied) {
  RawWorker& attacker = Attack();
  const int rings = attacker.rings_descriptor.get();
  for (const off_t size : {off_t{0}, off_t{4096}, off_t{1} << 30}) {
    EXPECT_EQ(ftruncate(rings, size), -1);
    EXPECT_EQ(errno, EPERM);
  }
  attacker.Put(ArenaRecord(100));
  Completion none;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(daemon.Poll({&none, 1}), 0u);
  // Everything becomes zeros, so the indices go backwards.
  ASSERT_EQ(fallocate(rings, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                      static_cast<off_t>(attacker.rings.bytes())),
            0);
  attacker.SetWritten({0, 5000});
  ExpectBroken(ProtocolError::kRing);
}

TEST_F(ShmHostileTest, RingingForNothingClosesTheLane) {
  RawWorker& attacker = Attack();
  Completion none;
  std::uint32_t rings = 0;
  Completion closed;
  for (; rings < 10000; ++rings) {
    attacker.RingBell();
    [[maybe_unused]] const bool idle = daemon.Arm();
    if (daemon.Poll({&closed, 1}) == 1) break;
  }
  EXPECT_LT(rings, 1000u);
  EXPECT_EQ(closed.kind, CompletionKind::kClosed);
  EXPECT_EQ(closed.protocol_error, ProtocolError::kDoorbell);
  ExpectBystanderServed();
}

TEST_F(ShmHostileTest, RingingWithNewsIsNeverTooMuch) {
  RawWorker& attacker = Attack();
  for (int i = 0; i < 2000; ++i) {
    attacker.Put(Record(Header(MessageKind::kCredit, SlotIndex{0}, 0), PayloadPlace::kNone));
    attacker.RingBell();
    [[maybe_unused]] const bool idle = daemon.Arm();
    Completion got;
    ASSERT_EQ(daemon.Poll({&got, 1}), 1u);
    ASSERT_EQ(got.kind, CompletionKind::kReceived);
    daemon.Release({&got, 1});
  }
}

// Both processes share the bell's mode. A worker makes it blocking and fills or drains it.
TEST_F(ShmHostileTest, BellThatWouldBlockIsNotTouched) {
  for (const bool full : {true, false}) {
    RawWorker& attacker = Attack();
    ASSERT_EQ(fcntl(attacker.doorbell.get(), F_SETFL, 0), 0);
    ASSERT_EQ(fcntl(attacker.socket.get(), F_SETFL, 0), 0);
    const std::uint64_t most = UINT64_MAX - 1;
    if (full) {
      ASSERT_EQ(write(attacker.doorbell.get(), &most, sizeof most), 8);
    }
    // The worker does not read the daemon's packets: the daemon rings until the socket is full, and
    // continues.
    for (int i = 0; i < 2000; ++i) {
      StoreShared(attacker.incoming.indices->receiver_sleeps, 1u, std::memory_order_seq_cst);
      const SendRequest request{.header = Header(MessageKind::kCredit, SlotIndex{0}, 0),
                                .payload = {},
                                .connections = {&attacked, 1}};
      ASSERT_EQ(daemon.Post({&request, 1}), 1u);
      Completion none;
      EXPECT_EQ(daemon.Poll({&none, 1}), 0u);
      attacker.SetRead(
          {LoadShared(attacker.incoming.indices->written.records, std::memory_order_seq_cst), 0});
      [[maybe_unused]] const bool idle = daemon.Arm();
    }
    ExpectBystanderServed();
    daemon.Close(attacked);
    EXPECT_EQ(WaitClosed().error, TransportError::kLocalClosed);
  }
}

// A thread changes everything continuously, in place of another process. Expect: no crash, and the
// other lane works.
TEST_F(ShmHostileTest, MemoryThatChangesWhileItIsReadIsOnlyTheirLoss) {
  std::atomic<bool> stop{false};
  std::atomic<std::byte*> target{nullptr};
  constexpr std::size_t kWords = LaneMemoryBytes(8, 4096) / 8;
  std::thread scribbler([&] {
    SeededRandom random(42);
    while (!stop) {
      auto* words = reinterpret_cast<std::uint64_t*>(target.load());
      if (words == nullptr) continue;
      const std::uint64_t value = random.Chance(1, 3) ? random.Next() : random.Below(9);
      StoreShared(words[random.Below(kWords)], value, std::memory_order_relaxed);
      StoreShared(words[random.Below(34)], random.Below(9), std::memory_order_relaxed);
    }
  });
  int lanes_ended = 0;
  SystemClock clock;
  for (int i = 0; i < 40; ++i) {
    RawWorker& attacker = Attack();
    for (int j = 0; j < 6; ++j) attacker.Put(ArenaRecord(100));
    target = attacker.rings.data();
    Completion completions[8];
    bool ended = false;
    const TimeNs started = clock.Now();
    while (!ended && clock.Now() - started < 50 * kMillisecond) {
      std::this_thread::yield();
      const std::size_t polled = daemon.Poll(completions);
      for (const Completion& each : std::span(completions).first(polled)) {
        if (each.kind == CompletionKind::kClosed) ended = true;
      }
      daemon.Release({completions, polled});
    }
    lanes_ended += ended;
    daemon.Close(attacked);
    if (!ended) WaitClosed();
  }
  stop = true;
  scribbler.join();
  EXPECT_GT(lanes_ended, 10);
  ExpectBystanderServed();
}

// A worker is killed at an arbitrary point. Expect: its lane ends within milliseconds, whether the
// daemon sleeps or polls.
TEST_F(ShmHostileTest, KilledInsideAWriteIsSeenAndHurtsNobody) {
  SystemClock clock;
  for (int round = 0; round < 20; ++round) {
    RawWorker& attacker = Attack();
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      // Only memory accesses and system calls here. The ring is filled repeatedly.
      const RingRecord record = ArenaRecord(100);
      const std::array<std::byte, 100> payload{};
      for (;;) {
        while (attacker.written.records -
                   LoadShared(attacker.outgoing.indices->read.records, std::memory_order_seq_cst) <
               8) {
          attacker.Put(record);
          attacker.PutBytes(payload);
        }
      }
    }
    attacker.socket.Reset();  // the child has it
    Completion completions[8];
    std::size_t received = 0;
    while (received < 50) {
      const std::size_t polled = daemon.Poll(completions);
      received += polled;
      daemon.Release({completions, polled});
    }
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    const TimeNs killed = clock.Now();
    bool closed = false;
    while (!closed && clock.Now() - killed < 2 * kSecond) {
      const std::size_t polled = daemon.Poll(completions);
      for (const Completion& each : std::span(completions).first(polled)) {
        if (each.kind != CompletionKind::kClosed) continue;
        closed = true;
        EXPECT_EQ(each.connection, attacked);
        EXPECT_EQ(each.error, TransportError::kPeerClosed);
      }
      daemon.Release({completions, polled});
      if (round % 2 == 0 && polled == 0 && daemon.Arm()) {
        pollfd item{daemon.descriptor(), POLLIN, 0};
        EXPECT_EQ(poll(&item, 1, 2000), 1);
      }
    }
    EXPECT_TRUE(closed);
    EXPECT_LT(clock.Now() - killed, kSecond);
  }
  ExpectBystanderServed();
}

}  // namespace
}  // namespace phub::transport
