#include "common/transport/shm/shm_connection.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <utility>

#include "common/base/check.h"
#include "common/transport/form.h"

namespace phub::transport {
namespace {

// A correct peer writes or reads something before it rings. A peer that rings more often than this
// in a row without a change only keeps this end awake, and is disconnected.
constexpr std::uint32_t kEmptyRingsMax = 256;

SharedSlots SlotsOf(const ShmConnection::Parts& parts) {
  if (parts.staging == nullptr) return {};
  PHUB_CHECK(std::size_t{parts.slot_count} * parts.slot_bytes <= parts.staging->bytes(),
             "slots={} of {} bytes in {}", parts.slot_count, parts.slot_bytes,
             parts.staging->bytes());
  return {parts.staging->data(), parts.slot_count, parts.slot_bytes};
}

Ring RingOf(const ShmConnection::Parts& parts, unsigned direction, const ShmLimits& limits) {
  PHUB_CHECK(parts.rings.bytes() == LaneMemoryBytes(limits.ring_records, limits.arena_bytes),
             "bytes={}", parts.rings.bytes());
  return RingAt(parts.rings.data(), direction, limits.ring_records, limits.arena_bytes);
}

}  // namespace

ShmConnection::ShmConnection(ShmEnd end, Parts parts, const ShmLimits& limits)
    : end_(end),
      parts_(std::move(parts)),
      peer_slots_(end == ShmEnd::kClient ? SlotsOf(parts_) : SharedSlots{}),
      sender_(RingOf(parts_, end == ShmEnd::kClient ? 0 : 1, limits), limits.send_queue),
      receiver_(RingOf(parts_, end == ShmEnd::kClient ? 1 : 0, limits),
                end == ShmEnd::kDaemon ? SlotsOf(parts_) : SharedSlots{}, parts_.regions.get(),
                limits.received_lent) {
  PHUB_CHECK(parts_.socket && parts_.doorbell, "a connection needs a socket and a doorbell");
}

RingSender::Placement ShmConnection::PlaceOf(const SendRequest& request) {
  const std::span<const std::byte> payload = request.payload;
  if (payload.empty()) return {PayloadPlace::kNone, {}};
  if (!LandsInSlot(request.header.kind)) return {PayloadPlace::kRecord, {}};
  if (payload.data() == peer_slots_.slot(request.header.slot) &&
      payload.size() <= peer_slots_.bytes) {
    return {PayloadPlace::kSlot, {}};
  }
  if (const SharedRegions* regions = parts_.regions.get()) {
    const auto found = regions->Locate(payload.data(), payload.size(), region_hint_);
    // The peer would refuse payload in a region that this end may only read.
    if (found.region != nullptr && found.region->writable) {
      const auto offset = static_cast<std::size_t>(payload.data() - found.region->data);
      return {PayloadPlace::kRegion, SharedRegions::Pack(found.index, offset)};
    }
  }
  const bool small = payload.size() <= wire::kInlineBytesMax;
  return {small ? PayloadPlace::kRecord : PayloadPlace::kArena, {}};
}

// Ignores failures: the peer is gone, or its doorbell has already rung.
void ShmConnection::RingPeer() const {
  if (end_ == ShmEnd::kDaemon) {
    const std::byte ring{1};
    [[maybe_unused]] const ssize_t put =
        send(parts_.socket.get(), &ring, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  } else {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t put = write(parts_.doorbell.get(), &one, sizeof one);
  }
}

// False if the peer has rung too often without a change.
bool ShmConnection::CountRing() {
  const RingPosition written = receiver_.PeersPosition();
  const RingPosition read = sender_.PeersPosition();
  const bool moved = written != rung_written_ || read != rung_read_;
  rung_written_ = written;
  rung_read_ = read;
  empty_rings_ = moved ? 0 : empty_rings_ + 1;
  return empty_rings_ <= kEmptyRingsMax;
}

// Reads the client's doorbell (packets on its socket) until it is empty, because readiness is
// edge-triggered.
void ShmConnection::ClearBell() const {
  std::array<std::byte, 8> bytes;
  while (recv(parts_.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
  }
}

void ShmConnection::Shutdown() const { shutdown(parts_.socket.get(), SHUT_RDWR); }

}  // namespace phub::transport
