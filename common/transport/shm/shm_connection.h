// One lane in shared memory. Made by OfferShmLane in the daemon and by DialShm in a client, on cold
// threads; after that it belongs to the ShmTransport that adopted it. Destroying it closes the
// socket and unmaps the rings; any thread, once nobody serves it.
//
// Doorbells. The client rings an eventfd; the daemon watches it edge-triggered and never reads or
// writes it. The daemon rings by a packet of one byte on the lane's socket. An eventfd would not do
// that way round: its O_NONBLOCK belongs to both processes, so a client could clear it, fill the
// counter, and have the daemon block in its write. A send can be told not to wait, call by call.
//
// The socket stays open for the lane's life: when a peer dies, however it dies, the kernel says so.
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

// What one connection holds, fixed when it is made. The daemon chooses the first two.
struct ShmLimits {
  // Of each direction; powers of two, see common/wire/shared_memory.h. The arena only carries what
  // lies in ordinary memory, and streams what is longer than itself: small enough to stay in cache.
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
    std::shared_ptr<const SharedMemory> staging;  // the daemon's landing slots; null: none
    std::uint32_t slot_count = 0;
    std::uint32_t slot_bytes = 0;
    std::shared_ptr<const SharedRegions> regions;  // null: none
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
  const SharedSlots peer_slots_;  // the peer's landing slots, in the client
  RingSender sender_;
  RingReceiver receiver_;
  mutable std::uint32_t region_hint_ = 0;

  // What the peer had done when it last rang.
  RingPosition rung_written_{};
  RingPosition rung_read_{};
  std::uint32_t empty_rings_ = 0;
};

}  // namespace phub::transport
