// A job's lanes over verbs: one message each way per chunk, no copy, and only registered memory is
// read or written.
#include <infiniband/verbs.h>

#include <algorithm>
#include <cstring>

#include "common/base/random.h"
#include "tests/verbs/direct_fixture.h"

namespace phub::verbs_tests {
namespace {

struct Range {
  std::uintptr_t begin = 0;
  std::size_t bytes = 0;
  bool Holds(std::uintptr_t address, std::size_t length) const {
    return address >= begin && address - begin <= bytes && length <= bytes - (address - begin);
  }
};
Range RangeOf(const MappedMemory& memory) {
  return {reinterpret_cast<std::uintptr_t>(memory.data()), memory.bytes()};
}

// Records every posted write by kind: its parts and its target.
class Recorder final : public transport::WorkRequestObserver {
 public:
  struct Write {
    std::vector<ibv_sge> parts;
    std::uint64_t remote = 0;
    std::size_t bytes = 0;
    bool tells = false;
  };
  void OnPost(const ibv_send_wr& request) override {
    Write write{.parts = {request.sg_list, request.sg_list + request.num_sge},
                .remote = request.wr.rdma.remote_addr,
                .tells = request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM};
    for (const ibv_sge& part : write.parts) write.bytes += part.length;
    writes.push_back(write);
  }
  std::vector<Write> writes;
};

class Direct : public DirectTest {
 protected:
  void SetUp() override {
    DirectTest::SetUp();
    SeededRandom random(1);
    random.Fill({gradients.data(), gradients.bytes()});
    random.Fill({versions.data(), versions.bytes()});
    ASSERT_TRUE(Until([&] { return Settled(); }));
    client.transport.Observe(&from_client);
    daemon.transport.Observe(&from_daemon);
  }
  // Both ends have exchanged keys and received the first messages.
  bool Settled() {
    Settle();
    return true;
  }
  Recorder from_client;
  Recorder from_daemon;
};

TEST_F(Direct, ChunkGoesAndComesInOneWriteEachWithoutACopy) {
  constexpr std::uint64_t kRounds = 50;
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    for (std::uint32_t chunk = 0; chunk < kLaneSlots; ++chunk) {
      ASSERT_EQ(Push(chunk, chunk, round), 1u);
    }
    ASSERT_TRUE(Until([&] { return daemon_told.size() == kLaneSlots; }));
    for (const Told& item : daemon_told) {
      const std::uint32_t chunk = item.header.chunk.value;
      ASSERT_EQ(item.completion.kind, CompletionKind::kReceived);
      EXPECT_EQ(item.payload, SlotPayload(chunk)) << "where it was received";
      EXPECT_EQ(std::memcmp(item.payload, ChunkOf(gradients, chunk), kLaneChunkBytes), 0);
      ASSERT_NE(item.header.reply_address, SharedAddress{});
      ASSERT_EQ(Reply(chunk, round, item.header.reply_address), 1u);
    }
    ASSERT_TRUE(Until([&] {
      return client_told.size() == kLaneSlots &&
             Count(daemon_told, CompletionKind::kSent) == kLaneSlots;
    }));
    for (const Told& item : client_told) {
      const wire::MessageHeader& header = item.header;
      const std::uint32_t chunk = header.chunk.value;
      wire::MessageHeader expected =
          Header(wire::MessageKind::kParameters, chunk, round, kLaneChunkBytes);
      expected.slot = SlotIndex{chunk};
      EXPECT_EQ(header, expected);
      EXPECT_EQ(std::memcmp(ChunkOf(parameters, chunk), ChunkOf(versions, chunk), kLaneChunkBytes),
                0);
      std::memset(ChunkOf(parameters, chunk), 0, kLaneChunkBytes);
      chunk_table[chunk] = {};
    }
    daemon_told.clear();
    client_told.clear();
  }
  // Expect: as many messages as chunks each way, and no copies.
  const transport::VerbsCounters& there = client.transport.counters();
  const transport::VerbsCounters& back = daemon.transport.counters();
  EXPECT_EQ(there.slot_writes.Get(), kRounds * kLaneSlots);
  EXPECT_EQ(there.messages_sent.Get(), kRounds * kLaneSlots);
  EXPECT_EQ(back.reply_writes.Get(), kRounds * kLaneSlots);
  EXPECT_EQ(back.messages_sent.Get(), kRounds * kLaneSlots);
  for (const transport::VerbsCounters* counters : {&there, &back}) {
    EXPECT_EQ(counters->bytes_copied.Get(), 0u);
    EXPECT_EQ(counters->inbox_messages.Get(), 0u);
  }
  // Four chunks are posted with few doorbells, and receipts are seldom sent.
  EXPECT_LE(there.doorbells.Get() - there.taken_sent.Get(), kRounds * kLaneSlots);
  EXPECT_LE(back.taken_sent.Get(), kRounds * kLaneSlots / 16);
}

TEST_F(Direct, WorkRequestsNameRegisteredMemoryOnly) {
  for (std::uint32_t chunk = 0; chunk < kLaneSlots; ++chunk) ASSERT_EQ(Push(chunk, chunk, 1), 1u);
  ASSERT_TRUE(Until([&] { return daemon_told.size() == kLaneSlots; }));
  for (const Told& item : daemon_told) {
    ASSERT_EQ(Reply(item.header.chunk.value, 1, item.header.reply_address), 1u);
  }
  ASSERT_TRUE(Until([&] { return client_told.size() == kLaneSlots; }));
  std::size_t gradients_written = 0;
  for (const Recorder::Write& write : from_client.writes) {
    if (write.bytes <= wire::kVerbsControlBytes) continue;  // announced regions
    ASSERT_EQ(write.parts.size(), 2u) << "header and payload";
    EXPECT_EQ(write.parts[0].length, wire::kHeaderBytes);
    EXPECT_TRUE(RangeOf(gradients).Holds(write.parts[1].addr, write.parts[1].length));
    EXPECT_TRUE(RangeOf(staging).Holds(write.remote, write.bytes));
    EXPECT_EQ((write.remote - RangeOf(staging).begin) % kSlotStride, 0u);
    EXPECT_TRUE(write.tells);
    ++gradients_written;
  }
  EXPECT_EQ(gradients_written, kLaneSlots);
  std::size_t replies_written = 0;
  for (const Recorder::Write& write : from_daemon.writes) {
    if (write.bytes == 0) continue;  // the number of received messages
    ASSERT_EQ(write.parts.size(), 1u);
    EXPECT_TRUE(RangeOf(versions).Holds(write.parts[0].addr, write.bytes));
    EXPECT_TRUE(RangeOf(parameters).Holds(write.remote, write.bytes));
    EXPECT_TRUE(write.tells);
    ++replies_written;
  }
  EXPECT_EQ(replies_written, kLaneSlots);
}

TEST_F(Direct, UnregisteredMemoryIsCopiedOnceAndCounted) {
  std::vector<std::byte> elsewhere(kLaneChunkBytes);
  SeededRandom(2).Fill(elsewhere);
  std::vector<std::byte> wanted(kLaneChunkBytes);
  SendRequest request;
  request.header = Header(wire::MessageKind::kGradient, 0, 1, elsewhere.size());
  request.header.slot = SlotIndex{2};
  request.payload = elsewhere;
  request.connections = {&client_id, 1};
  chunk_table[0] = {wanted.data(), kLaneChunkBytes, false};
  ASSERT_EQ(client.transport.Post({&request, 1}), 1u);
  ASSERT_TRUE(Until([&] { return daemon_told.size() == 1; }));
  EXPECT_EQ(daemon_told[0].payload, SlotPayload(2));
  EXPECT_EQ(std::memcmp(SlotPayload(2), elsewhere.data(), elsewhere.size()), 0);
  EXPECT_EQ(client.transport.counters().bytes_copied.Get(), elsewhere.size());
  EXPECT_EQ(client.transport.counters().sends_copied.Get(), 1u);
  EXPECT_EQ(daemon_told[0].header.reply_address, SharedAddress{})
      << "nothing it could be written to";
  // The reply goes through the inbox, and is copied out of it.
  ASSERT_EQ(Reply(0, 1, {}), 1u);
  ASSERT_TRUE(Until([&] { return client_told.size() == 1; }));
  EXPECT_EQ(std::memcmp(wanted.data(), ChunkOf(versions, 0), kLaneChunkBytes), 0);
  EXPECT_EQ(client.transport.counters().receives_copied.Get(), 1u);
  EXPECT_EQ(daemon.transport.counters().bytes_copied.Get(), 0u);
}

TEST_F(Direct, MemoryThatIsRegisteredLaterIsUsedFromThenOn) {
  MappedMemory more = Pages(kLaneChunkBytes);
  Register(client, more, Use::kReceive);
  ASSERT_EQ(Push(0, 0, 1), 1u);
  chunk_table[1] = {more.data(), kLaneChunkBytes, false};
  SendRequest request;
  request.header = Header(wire::MessageKind::kGradient, 1, 1, kLaneChunkBytes);
  request.header.slot = SlotIndex{1};
  request.payload = {ChunkOf(gradients, 1), kLaneChunkBytes};
  request.connections = {&client_id, 1};
  ASSERT_EQ(client.transport.Post({&request, 1}), 1u);
  ASSERT_TRUE(Until([&] { return daemon_told.size() == 2; }));
  ASSERT_EQ(Reply(1, 1, daemon_told[1].header.reply_address), 1u);
  ASSERT_TRUE(Until([&] { return client_told.size() == 1; }));
  EXPECT_EQ(std::memcmp(more.data(), ChunkOf(versions, 1), kLaneChunkBytes), 0);
  EXPECT_EQ(daemon.transport.counters().reply_writes.Get(), 1u);
  client.transport.Close(client_id);
  ASSERT_TRUE(Until([&] { return Count(client_told, CompletionKind::kClosed) == 1; }));
  theirs.reset();  // before the memory that the domain still has
}

TEST_F(Direct, ReplyThatAnswersNothingEndsTheLane) {
  ASSERT_EQ(Push(0, 0, 1), 1u);
  ASSERT_TRUE(Until([&] { return daemon_told.size() == 1; }));
  const SharedAddress address = daemon_told[0].header.reply_address;
  ASSERT_EQ(Reply(0, 2, address), 1u);  // of another iteration
  ASSERT_TRUE(Until([&] { return Count(client_told, CompletionKind::kClosed) == 1; }));
  EXPECT_EQ(client_told.back().completion.error, TransportError::kProtocol);
  EXPECT_EQ(client_told.back().completion.protocol_error, ProtocolError::kImmediate);
}

TEST_F(Direct, NothingOfAnEarlierLaneLandsInASlot) {
  // The daemon's end is closed while the client, which does not poll, has gradients in flight.
  for (std::uint32_t i = 0; i < 3; ++i) ASSERT_EQ(Push(i, i, 1), 1u);
  daemon.transport.Close(daemon_id);
  PollOne(daemon.transport, daemon_told);
  std::memset(staging.data(), 0x5A, staging.bytes());
  const std::vector<std::byte> before(staging.data(), staging.data() + staging.bytes());
  std::vector<Told> ignored;
  for (int i = 0; i < 200; ++i) PollOne(client.transport, ignored);
  Settle();
  EXPECT_TRUE(std::equal(before.begin(), before.end(), staging.data()))
      << "windows and queue pair were invalid before anything else used the memory";
  const ConnectionId old = client_id;
  client.transport.Close(old);
  Settle();
  ours.reset();
  theirs.reset();
  // Expect: a new lane over the same slots works, with its own keys.
  daemon_told.clear();
  client_told.clear();
  OpenLane();
  ASSERT_EQ(Push(3, 1, 1), 1u);
  ASSERT_TRUE(Until([&] { return Count(daemon_told, CompletionKind::kReceived) == 1; }));
  EXPECT_EQ(std::memcmp(SlotPayload(1), ChunkOf(gradients, 3), kLaneChunkBytes), 0);
}

}  // namespace
}  // namespace phub::verbs_tests
