// One lane in shared memory. OfferShmLane creates it in the daemon, DialShm in a client; then it
// belongs to the ShmTransport that adopted it. The destructor closes the socket and unmaps the
// rings; any thread may call it when no transport serves the connection any more.
//
// Doorbells. The client rings an eventfd, which the daemon watches edge-triggered and never reads
// or writes. The daemon rings with a packet of one byte on the lane's socket. It cannot use an
// eventfd, because both processes share its O_NONBLOCK flag: a client could clear the flag and fill
// the counter, and the daemon's write would block. send() has a flag for each call (MSG_DONTWAIT).
//
// The socket stays open as long as the lane. It reports the peer's death, because the kernel closes
// a dead process's sockets.
#pragma once

#include <cstdint>
#include <memory>

#include "common/base/descriptor.h"
#include "common/base/shared_memory.h"
#include "common/transport/shm/ring_receiver.h"
#include "common/transport/shm/ring_sender.h"
#include "common/transport/shm/shared_regions.h"
#include "common/transport/transport.h"

namespace phub::transport {

// Sizes of one connection, fixed when it is created. The daemon chooses the first two.
struct ShmLimits {
  // For each direction; powers of two, see common/wire/shared_memory.h. The arena carries only
  // payload that is in ordinary memory. It is small, to stay in the cache; longer payloads pass
  // through it in pieces.
  std::uint32_t ring_records = 128;
  std::uint32_t arena_bytes = 16 * 1024;
  std::uint32_t send_queue = 256;    // requests posted and not yet reported or forgotten
  std::uint32_t received_lent = 64;  // messages lent at once
};

enum class ShmEnd : std::uint8_t { kDaemon, kClient };

class ShmConnection final : public Connection {
 public:
  struct Parts {
    Descriptor socket;                            // connected, SOCK_SEQPACKET
    Descriptor doorbell;                          // the eventfd that the client rings
    SharedMemory rings;                           // LaneMemoryBytes(limits)
    std::shared_ptr<const SharedMemory> staging;  // the daemon's landing slots; may be null
    std::uint32_t slot_count = 0;
    std::uint32_t slot_bytes = 0;
    std::shared_ptr<const SharedRegions> regions;  // may be null
  };
  ShmConnection(ShmEnd end, Parts parts, const ShmLimits& limits);

  ShmEnd end() const { return end_; }
  int socket() const { return parts_.socket.get(); }
  int doorbell() const { return parts_.doorbell.get(); }
  const SharedRegions* regions() const { return parts_.regions.get(); }

 private:
  friend class ShmTransport;
  friend struct ShmEntry;

  RingSender::Placement PlaceOf(const SendRequest& request);
  void RingPeer() const;
  bool CountRing();
  void ClearBell() const;
  void Shutdown() const;

  const ShmEnd end_;
  const Parts parts_;
  const SharedSlots peer_slots_;  // the daemon's landing slots; only in the client
  RingSender sender_;
  RingReceiver receiver_;
  mutable std::uint32_t region_hint_ = 0;

  // The peer's positions when it last rang.
  RingPosition rung_written_{};
  RingPosition rung_read_{};
  std::uint32_t empty_rings_ = 0;
};

}  // namespace phub::transport
