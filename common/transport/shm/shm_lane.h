// Creates the two ends of a lane over a connected Unix socket: the memory, and the packet that
// passes its descriptors. Off the data path; any thread. Used by ShmListener and DialShm.
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

// The error for memory of the daemon that cannot be mapped: a shortage of this process stays one,
// everything else is the daemon's mistake.
absl::Status MapError(const absl::Status& status);

// The memory of a lane in addition to its rings. The connection keeps it alive.
struct LaneMemory {
  // The daemon's landing slots for this lane, which the worker writes. Slot i is at offset
  // i * slot_bytes. Created by SharedMemory::Create with Others::kWrite; its descriptor must be
  // open. May be null.
  std::shared_ptr<const SharedMemory> staging;
  std::uint32_t slot_count = 0;
  std::uint32_t slot_bytes = 0;
  std::shared_ptr<const SharedRegions> regions;  // the rank's; may be null
  SharedMemory::ReleaseHook rings_hook;          // may be empty
};

// The daemon's end: creates the rings, and sends the welcome and the descriptors in one packet. If
// it fails (no memory, no descriptors), it does not take the socket. If the peer has closed the
// connection, the transport that serves the lane reports that.
absl::StatusOr<std::unique_ptr<ShmConnection>> OfferShmLane(Descriptor& socket,
                                                            const wire::LaneWelcome& welcome,
                                                            const LaneMemory& memory,
                                                            const ShmLimits& limits);

// The client's end, from that packet (`shape` and the descriptors). The ring sizes in `limits` are
// ignored. kInternal: the packet does not describe a lane.
absl::StatusOr<std::unique_ptr<ShmConnection>> AcceptShmLane(
    Descriptor socket, const wire::SharedLane& shape, ReceivedPacket& packet,
    std::shared_ptr<const SharedRegions> regions, const ShmLimits& limits);

}  // namespace phub::transport
