#include "common/transport/shm/ring_sender.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/base/check.h"

namespace phub::transport {
namespace {

// A long payload is published in pieces, so that the peer copies a piece while this end writes the
// next one.
constexpr std::size_t kPieceBytes = 64 * 1024;

}  // namespace

RingSender::RingSender(const Ring& ring, std::uint32_t capacity)
    : ring_(ring),
      capacity_(capacity),
      requests_(std::make_unique_for_overwrite<Request[]>(capacity)) {
  PHUB_CHECK(capacity > 0 && ring.indices != nullptr);
  PHUB_CHECK(std::has_single_bit(ring.record_count) &&
                 (ring.arena_bytes == 0 || std::has_single_bit(ring.arena_bytes)),
             "records={} arena={}", ring.record_count, ring.arena_bytes);
}

void RingSender::Push(std::span<const std::byte, wire::kHeaderBytes> header, Placement placement,
                      std::span<const std::byte> payload, std::uint64_t cookie, bool notify_sent) {
  PHUB_DCHECK(!full());
  // An empty queue starts at its first entry again. So it uses only as many memory pages, and as
  // much cache, as the largest number of pending requests needs.
  if (reported_ == tail_) reported_ = written_ = tail_ = 0;
  Request& request = at(tail_++);
  std::copy(header.begin(), header.end(), request.record.header.begin());
  request.record.place = static_cast<std::uint64_t>(placement.place);
  request.record.address = placement.address.value;
  request.arena_payload = nullptr;
  request.arena_bytes = 0;
  if (placement.place == PayloadPlace::kRecord) {
    PHUB_CHECK(payload.size() <= request.record.payload.size(), "bytes={}", payload.size());
    std::copy(payload.begin(), payload.end(), request.record.payload.begin());
  } else if (placement.place == PayloadPlace::kArena) {
    request.arena_payload = payload.data();
    request.arena_bytes = payload.size();
  }
  request.cookie = cookie;
  request.notify_sent = notify_sent;
}

void RingSender::PopBack() {
  PHUB_CHECK(tail_ > written_ && (tail_ - 1 > written_ || !front_recorded_));
  --tail_;
}

// Loads the peer's position. False if it is invalid: beyond what was written, or before the last
// known position.
bool RingSender::LookForRoom() {
  const RingPosition read = PeersPosition();
  if (read.records - taken_.records > published_.records - taken_.records ||
      read.bytes - taken_.bytes > published_.bytes - taken_.bytes) {
    return false;
  }
  taken_ = read;
  return true;
}

RingPosition RingSender::PeersPosition() const { return LoadPosition(ring_.indices->read); }

std::size_t RingSender::PutBytes(std::span<const std::byte> bytes) {
  const std::size_t room = ring_.arena_bytes - (put_.bytes - taken_.bytes);
  PHUB_CHECK(room <= ring_.arena_bytes, "room={} arena={}", room, ring_.arena_bytes);
  const std::size_t count = std::min({bytes.size(), room, kPieceBytes});
  ForArenaParts(put_.bytes, count, ring_.arena_bytes,
                [&](std::size_t offset, std::size_t from, std::size_t part) {
                  std::memcpy(ring_.arena + offset, bytes.data() + from, part);
                });
  put_.bytes += count;
  return count;
}

bool RingSender::Flush(std::size_t& budget_bytes) {
  bool looked = false;
  blocked_ = false;
  while (written_ != tail_ && budget_bytes > 0) {
    Request& request = at(written_);
    const std::span<const std::byte> rest(request.arena_payload + front_put_,
                                          request.arena_bytes - front_put_);
    const bool no_record = !front_recorded_ && put_.records - taken_.records == ring_.record_count;
    const bool no_bytes = !rest.empty() && put_.bytes - taken_.bytes == ring_.arena_bytes;
    if (no_record || (front_recorded_ && no_bytes)) {
      blocked_ = looked;
      if (looked) break;
      Publish();
      if (!LookForRoom()) return false;
      looked = true;
      continue;
    }
    looked = false;
    if (!front_recorded_) {
      std::memcpy(&ring_.record(put_.records), &request.record,
                  request.record.place == static_cast<std::uint64_t>(PayloadPlace::kRecord)
                      ? sizeof(RingRecord)
                      : offsetof(RingRecord, payload));
      ++put_.records;
      front_recorded_ = true;
    }
    if (!rest.empty()) {
      const std::size_t count = PutBytes(rest);
      front_put_ += count;
      budget_bytes -= std::min(budget_bytes, count);
      if (count == kPieceBytes) Publish();
      if (count < rest.size()) continue;
    }
    ++written_;
    front_recorded_ = false;
    front_put_ = 0;
  }
  Publish();
  return true;
}

// Publishes bytes before records, so that a receiver that sees a record usually sees its bytes too.
void RingSender::Publish() {
  if (put_.bytes != published_.bytes) {
    StoreShared(ring_.indices->written.bytes, put_.bytes, std::memory_order_seq_cst);
    unannounced_ = true;
  }
  if (put_.records != published_.records) {
    StoreShared(ring_.indices->written.records, put_.records, std::memory_order_seq_cst);
    unannounced_ = true;
  }
  published_ = put_;
}

// A peer that is awake checks the ring before it sleeps, so it needs no ring. receiver_awaits need
// not be checked: a wrong number only delays the peer itself, and only for a short time.
RingSender::Bell RingSender::TakePeerSleeps(bool hurry) {
  if (!unannounced_) return Bell::kNo;
  const bool sleeps = LoadShared(ring_.indices->receiver_sleeps, std::memory_order_seq_cst) != 0;
  if (sleeps && !hurry && !has_unsent() && !HasWhatIsAwaited()) return Bell::kLater;
  unannounced_ = false;
  if (!sleeps || (hurry && PeersPosition() == published_)) return Bell::kNo;
  return TakeSleeps(ring_.indices->receiver_sleeps) ? Bell::kNow : Bell::kNo;
}

bool RingSender::HasWhatIsAwaited() const {
  const std::uint32_t awaited =
      LoadShared(ring_.indices->receiver_awaits, std::memory_order_relaxed);
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(published_.records) - awaited) >= 0;
}

void RingSender::KeepAlive() {
  StoreShared(ring_.indices->sender_alive, ++alive_, std::memory_order_relaxed);
}

void RingSender::SetSleeps(bool sleeps) {
  transport::SetSleeps(ring_.indices->sender_sleeps, sleeps);
}

bool RingSender::NextSent(std::uint64_t& cookie) {
  while (reported_ != written_) {
    const Request& request = at(reported_++);
    if (!request.notify_sent) continue;
    cookie = request.cookie;
    return true;
  }
  return false;
}

void RingSender::CheckInvariants() const {
  PHUB_CHECK(reported_ <= written_ && written_ <= tail_ && tail_ - reported_ <= capacity_,
             "Q1 reported={} written={} tail={} capacity={}", reported_, written_, tail_,
             capacity_);
  PHUB_CHECK(put_.records - taken_.records <= ring_.record_count &&
                 put_.bytes - taken_.bytes <= ring_.arena_bytes,
             "G1 records={} bytes={}", put_.records - taken_.records, put_.bytes - taken_.bytes);
  // A turn ends only after everything in the ring was published.
  PHUB_CHECK(put_ == published_, "G1 records={} published={}", put_.records, published_.records);
  PHUB_CHECK(!front_recorded_ || has_unsent(), "G2 written={}", written_);
  PHUB_CHECK(front_put_ == 0 || (front_recorded_ && front_put_ < at(written_).arena_bytes),
             "G2 front_put={}", front_put_);
}

void RingSender::DropUnsent() {
  tail_ = written_;
  front_recorded_ = false;
  front_put_ = 0;
}

}  // namespace phub::transport
