// Makes the two ends of a lane over a connected Unix socket: memory, and the packet that passes it.
// Cold; any thread. The listener and the dialler use it after their handshake.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "common/base/descriptor.h"
#include "common/base/descriptor_passing.h"
#include "common/transport/shm/shm_connection.h"
#include "common/wire/lane_hello.h"
#include "common/wire/shared_memory.h"

namespace phub::transport {

// What a lane brings beside its rings. Kept alive by the connection.
struct LaneMemory {
  // The daemon's landing slots of this lane, which the worker writes: slot i at i * slot_bytes.
  // Made by SharedMemory::Create with Others::kWrite, its descriptor open. Null: none.
  std::shared_ptr<const SharedMemory> staging;
  std::uint32_t slot_count = 0;
  std::uint32_t slot_bytes = 0;
  std::shared_ptr<const SharedRegions> regions;  // of the rank; null: none
};

// The daemon's end: makes the rings and sends welcome and descriptors, in one packet. Errors are
// the host's (no memory, no descriptors), and leave the socket where it was. A peer that is gone is
// noticed when the lane is served.
absl::StatusOr<std::unique_ptr<ShmConnection>> OfferShmLane(Descriptor& socket,
                                                            const wire::LaneWelcome& welcome,
                                                            const LaneMemory& memory,
                                                            const ShmLimits& limits);

// The client's end, from that packet (`shape` and the descriptors came in it). Of `limits` only
// what a connection holds for itself counts. kInternal: what came is no lane.
absl::StatusOr<std::unique_ptr<ShmConnection>> AcceptShmLane(
    Descriptor socket, const wire::SharedLane& shape, ReceivedPacket& packet,
    std::shared_ptr<const SharedRegions> regions, const ShmLimits& limits);

}  // namespace phub::transport
