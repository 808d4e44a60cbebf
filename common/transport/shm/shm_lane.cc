#include "common/transport/shm/shm_lane.h"

#include <sys/eventfd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "common/base/check.h"
#include "common/base/shortage.h"

namespace phub::transport {

absl::Status MapError(const absl::Status& status) {
  return absl::IsResourceExhausted(status) ? status : absl::InternalError(status.message());
}

absl::StatusOr<std::unique_ptr<ShmConnection>> OfferShmLane(Descriptor& socket,
                                                            const wire::LaneWelcome& welcome,
                                                            const LaneMemory& memory,
                                                            const ShmLimits& limits) {
  PHUB_CHECK(wire::RingsFit(limits.ring_records, limits.arena_bytes), "records={} arena={}",
             limits.ring_records, limits.arena_bytes);
  PHUB_CHECK(memory.staging == nullptr || memory.staging->descriptor() >= 0,
             "staging memory has no descriptor");
  auto rings =
      SharedMemory::Create("phub-lane", LaneMemoryBytes(limits.ring_records, limits.arena_bytes),
                           SharedMemory::Others::kWrite);
  if (!rings.ok()) return rings.status();
  Descriptor doorbell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!doorbell) {
    return DescriptorShortage("create an eventfd", errno);
  }
  const bool has_slots = memory.staging != nullptr;
  std::array<std::byte, wire::kLaneWelcomeBytes + wire::kSharedLaneBytes> bytes;
  const std::span<std::byte> all(bytes);
  wire::EncodeLaneWelcome(welcome, all.first<wire::kLaneWelcomeBytes>());
  wire::EncodeSharedLane({.ring_records = limits.ring_records,
                          .arena_bytes = limits.arena_bytes,
                          .slot_count = has_slots ? memory.slot_count : 0,
                          .slot_bytes = has_slots ? memory.slot_bytes : 0},
                         all.last<wire::kSharedLaneBytes>());
  std::array<int, 3> descriptors;
  std::size_t count = 0;
  descriptors[count++] = rings->descriptor();
  if (has_slots) descriptors[count++] = memory.staging->descriptor();
  descriptors[count++] = doorbell.get();
  // Fits into the empty buffer of a new socket. It does not matter if the peer has closed it.
  [[maybe_unused]] const bool sent =
      SendPacket(socket.get(), bytes, std::span(descriptors).first(count));
  // The descriptor is what the hook gets.
  rings->SetReleaseHook(memory.rings_hook);
  if (!memory.rings_hook) rings->CloseDescriptor();
  auto connection =
      std::make_unique<ShmConnection>(ShmEnd::kDaemon,
                                      ShmConnection::Parts{.socket = std::move(socket),
                                                           .doorbell = std::move(doorbell),
                                                           .rings = *std::move(rings),
                                                           .staging = memory.staging,
                                                           .slot_count = memory.slot_count,
                                                           .slot_bytes = memory.slot_bytes,
                                                           .regions = memory.regions},
                                      limits);
  connection->SetVersion(welcome.version);
  return connection;
}

absl::StatusOr<std::unique_ptr<ShmConnection>> AcceptShmLane(
    Descriptor socket, const wire::SharedLane& shape, ReceivedPacket& packet,
    std::shared_ptr<const SharedRegions> regions, const ShmLimits& limits) {
  const bool has_slots = shape.slot_count > 0;
  if (packet.descriptors_lost) return PassedDescriptorShortage("open a lane in shared memory");
  if (packet.descriptor_count != (has_slots ? 3u : 2u)) {
    return absl::InternalError(
        fmt::format("the daemon passed {} descriptors for a lane, {} were expected",
                    packet.descriptor_count, has_slots ? 3 : 2));
  }
  auto rings = SharedMemory::Map(packet.descriptors[0],
                                 LaneMemoryBytes(shape.ring_records, shape.arena_bytes),
                                 SharedMemory::Access::kWrite);
  if (!rings.ok()) return MapError(rings.status());
  std::shared_ptr<const SharedMemory> staging;
  if (has_slots) {
    auto mapped =
        // The memory of a daemon with RDMA devices is larger, because their lanes need room for
        // headers between slots.
        SharedMemory::Map(packet.descriptors[1], std::size_t{shape.slot_count} * shape.slot_bytes,
                          SharedMemory::Access::kWrite, SharedMemory::Size::kAtLeast);
    if (!mapped.ok()) return MapError(mapped.status());
    staging = std::make_shared<const SharedMemory>(*std::move(mapped));
  }
  ShmLimits shaped = limits;
  shaped.ring_records = shape.ring_records;
  shaped.arena_bytes = shape.arena_bytes;
  Descriptor& doorbell = packet.descriptors[packet.descriptor_count - 1];
  return std::make_unique<ShmConnection>(ShmEnd::kClient,
                                         ShmConnection::Parts{.socket = std::move(socket),
                                                              .doorbell = std::move(doorbell),
                                                              .rings = *std::move(rings),
                                                              .staging = std::move(staging),
                                                              .slot_count = shape.slot_count,
                                                              .slot_bytes = shape.slot_bytes,
                                                              .regions = std::move(regions)},
                                         shaped);
}

}  // namespace phub::transport
