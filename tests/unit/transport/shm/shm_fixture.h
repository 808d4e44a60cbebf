// Lanes between a daemon's and a worker's transport in one process, each end with its own mappings;
// and a worker without a transport, which writes arbitrary data into its rings.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/transport/shm/ring.h"
#include "common/transport/shm/shm_lane.h"
#include "common/transport/shm/shm_transport.h"

namespace phub::transport {

using Memory = std::shared_ptr<const SharedMemory>;

// The same memory as mapped by the daemon and by the worker.
struct MappedTwice {
  MappedTwice(std::size_t bytes, SharedMemory::Others others) {
    auto made = SharedMemory::Create("phub-test", bytes, others);
    PHUB_CHECK(made.ok());
    daemons = std::make_shared<const SharedMemory>(*std::move(made));
    const Descriptor passed(dup(daemons->descriptor()));
    auto mapped =
        SharedMemory::Map(passed, bytes,
                          others == SharedMemory::Others::kWrite ? SharedMemory::Access::kWrite
                                                                 : SharedMemory::Access::kRead);
    PHUB_CHECK(mapped.ok());
    workers = std::make_shared<const SharedMemory>(*std::move(mapped));
  }
  Memory daemons;
  Memory workers;
};

inline constexpr std::size_t kRegionBytes = 64 * 1024;
inline constexpr std::uint32_t kShmSlots = 4;
inline constexpr std::uint32_t kShmSlotBytes = 4096;

// Memory that a rank shares with its daemon: region 0 is its own, region 1 has the job's
// parameters.
struct RankMemory {
  RankMemory()
      : worker(kRegionBytes, SharedMemory::Others::kWrite),
        parameters(kRegionBytes, SharedMemory::Others::kRead),
        staging(std::size_t{kShmSlots} * kShmSlotBytes, SharedMemory::Others::kWrite),
        daemons(std::make_shared<SharedRegions>()),
        workers(std::make_shared<SharedRegions>()) {
    daemons->Add(worker.daemons, /*writable_by_peer=*/true);
    daemons->Add(parameters.daemons, /*writable_by_peer=*/false);
    workers->Add(worker.workers, /*writable_by_peer=*/true);
    workers->Add(parameters.workers, /*writable_by_peer=*/true);
  }
  LaneMemory lane() const { return {staging.daemons, kShmSlots, kShmSlotBytes, daemons, {}}; }
  // The daemon's landing table over the staging slots.
  std::vector<LandingSlot> landing() const {
    std::vector<LandingSlot> table(kShmSlots);
    for (std::uint32_t i = 0; i < kShmSlots; ++i) {
      table[i] = {staging.daemons->data() + std::size_t{i} * kShmSlotBytes, kShmSlotBytes};
    }
    return table;
  }

  MappedTwice worker;
  MappedTwice parameters;
  MappedTwice staging;
  std::shared_ptr<SharedRegions> daemons;
  std::shared_ptr<SharedRegions> workers;
};

// A lane offered by a daemon, and the descriptors passed to the worker.
struct Offered {
  Offered(const LaneMemory& memory, const ShmLimits& limits) {
    int sockets[2];
    PHUB_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0);
    Descriptor daemons(sockets[0]);
    socket = Descriptor(sockets[1]);
    auto made = OfferShmLane(daemons,
                             {.version = wire::kLaneVersion,
                              .version_min = wire::kLaneVersionMin,
                              .version_max = wire::kLaneVersion},
                             memory, limits);
    PHUB_CHECK(made.ok());
    daemon = *std::move(made);
    std::array<std::byte, wire::kLaneWelcomeBytes + wire::kSharedLaneBytes> answer;
    packet = ReceivePacket(socket.get(), answer);
    PHUB_CHECK(wire::DecodeSharedLane(std::span(answer).last(wire::kSharedLaneBytes), shape));
  }
  std::unique_ptr<ShmConnection> Accept(std::shared_ptr<const SharedRegions> regions,
                                        const ShmLimits& limits) {
    auto made = AcceptShmLane(std::move(socket), shape, packet, std::move(regions), limits);
    PHUB_CHECK(made.ok());
    return *std::move(made);
  }
  std::unique_ptr<ShmConnection> daemon;
  Descriptor socket;
  ReceivedPacket packet;
  wire::SharedLane shape;
};

// One lane, with a transport at each end.
class ShmPairTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Offered offered(rank.lane(), limits);
    daemon_connection = std::move(offered.daemon);
    worker_connection = offered.Accept(rank.workers, limits);
    landing = rank.landing();
    parameters_here.assign(kRegionBytes, std::byte{0});
    worker_landing = {{parameters_here.data(), kShmSlotBytes}};
    daemon_id = daemon.Adopt(*daemon_connection, landing);
    worker_id = worker.Adopt(*worker_connection, worker_landing);
  }

  const ShmLimits limits{.ring_records = 8, .arena_bytes = 4096};
  RankMemory rank;
  std::vector<LandingSlot> landing;
  std::vector<LandingSlot> worker_landing;
  std::vector<std::byte> parameters_here;
  std::unique_ptr<ShmConnection> daemon_connection;
  std::unique_ptr<ShmConnection> worker_connection;
  ShmTransport daemon{4};
  ShmTransport worker{4};
  ConnectionId daemon_id;
  ConnectionId worker_id;
};

inline wire::MessageHeader Header(wire::MessageKind kind, SlotIndex slot, std::size_t bytes) {
  wire::MessageHeader header;
  header.kind = kind;
  header.slot = slot;
  header.payload_bytes = static_cast<std::uint32_t>(bytes);
  return header;
}

inline RingRecord Record(const wire::MessageHeader& header, PayloadPlace place,
                         SharedAddress address = {}) {
  RingRecord record{};
  wire::EncodeHeader(header, record.header);
  record.place = static_cast<std::uint64_t>(place);
  record.address = address.value;
  return record;
}

// The worker's end without a transport.
class RawWorker {
 public:
  explicit RawWorker(Offered& offered)
      : socket(std::move(offered.socket)),
        doorbell(std::move(offered.packet.descriptors.at(offered.packet.descriptor_count - 1))) {
    const std::size_t bytes =
        LaneMemoryBytes(offered.shape.ring_records, offered.shape.arena_bytes);
    auto mapped =
        SharedMemory::Map(offered.packet.descriptors[0], bytes, SharedMemory::Access::kWrite);
    PHUB_CHECK(mapped.ok());
    rings_descriptor = std::move(offered.packet.descriptors[0]);
    rings = *std::move(mapped);
    outgoing = RingAt(rings.data(), 0, offered.shape.ring_records, offered.shape.arena_bytes);
    incoming = RingAt(rings.data(), 1, offered.shape.ring_records, offered.shape.arena_bytes);
  }
  void Put(const RingRecord& record) {
    outgoing.record(written.records++) = record;
    SetWritten(written);
  }
  void PutBytes(std::span<const std::byte> bytes) {
    ForArenaParts(written.bytes, bytes.size(), outgoing.arena_bytes,
                  [&](std::size_t offset, std::size_t from, std::size_t part) {
                    std::copy_n(bytes.data() + from, part, outgoing.arena + offset);
                  });
    written.bytes += bytes.size();
    SetWritten(written);
  }
  void SetWritten(RingPosition position) {
    StoreShared(outgoing.indices->written.bytes, position.bytes, std::memory_order_seq_cst);
    StoreShared(outgoing.indices->written.records, position.records, std::memory_order_seq_cst);
  }
  void SetRead(RingPosition position) {
    StoreShared(incoming.indices->read.bytes, position.bytes, std::memory_order_seq_cst);
    StoreShared(incoming.indices->read.records, position.records, std::memory_order_seq_cst);
  }
  void RingBell() const {
    const std::uint64_t one = 1;
    PHUB_CHECK(write(doorbell.get(), &one, sizeof one) == sizeof one);
  }

  Descriptor socket;
  Descriptor doorbell;
  Descriptor rings_descriptor;
  SharedMemory rings;
  Ring outgoing;
  Ring incoming;
  RingPosition written{};
};

// Polls until there is a completion of this kind, for a bounded time. Releases nothing.
inline bool PollFor(Transport& transport, CompletionKind kind, Completion& found) {
  for (int i = 0; i < 100000; ++i) {
    Completion completion;
    if (transport.Poll({&completion, 1}) == 0) continue;
    if (completion.kind != kind) continue;
    found = completion;
    return true;
  }
  return false;
}

}  // namespace phub::transport
