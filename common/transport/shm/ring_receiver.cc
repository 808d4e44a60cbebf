#include "common/transport/shm/ring_receiver.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/transport/form.h"

namespace phub::transport {
RingReceiver::RingReceiver(const Ring& ring, const SharedSlots& slots, const SharedRegions* regions,
                           std::uint32_t message_count)
    : ring_(ring), slots_(slots), regions_(regions), pool_(message_count) {
  PHUB_CHECK(ring.indices != nullptr && std::has_single_bit(ring.record_count) &&
                 (ring.arena_bytes == 0 || std::has_single_bit(ring.arena_bytes)),
             "records={} arena={}", ring.record_count, ring.arena_bytes);
  PHUB_CHECK(slots.data != nullptr || slots.count == 0, "slots={}", slots.count);
}

RingReceiver::Result RingReceiver::Receive(std::span<const LandingSlot> landing,
                                           std::size_t& budget_bytes) {
  const auto broken = [](ProtocolError error) {
    return Result{.outcome = Outcome::kBroken, .error = error};
  };
  if (budget_bytes == 0) return {.outcome = Outcome::kYield};
  if (message_ == nullptr) {
    if (taken_.records == written_records_) {
      const std::uint64_t written =
          LoadShared(ring_.indices->written.records, std::memory_order_acquire);
      if (written - taken_.records > ring_.record_count) return broken(ProtocolError::kRing);
      written_records_ = written;
      if (taken_.records == written) return {.outcome = Outcome::kBlocked};
    }
    if (pool_.empty()) return {.outcome = Outcome::kStarved};
    const ProtocolError error = Start(landing, budget_bytes);
    if (error != ProtocolError::kNone) return broken(error);
  } else {
    // The owner may have changed the table since the record was read.
    const ProtocolError error = CheckLanding(landing);
    if (error != ProtocolError::kNone) return broken(error);
  }
  Result stop;
  while (payload_have_ < message_->header.payload_bytes) {
    if (!TakeBytes(budget_bytes, stop)) return stop;
  }
  return {.outcome = Outcome::kMessage, .message = std::exchange(message_, nullptr)};
}

ProtocolError RingReceiver::Start(std::span<const LandingSlot> landing, std::size_t& budget_bytes) {
  PHUB_DCHECK(taken_.records != written_records_ && !inside_message());
  CopyRecord(ring_.record(taken_.records), record_);
  ReceivedMessage& message = pool_.next();
  const wire::DecodeError decode_error = wire::DecodeHeader(record_.header, message.header);
  if (decode_error != wire::DecodeError::kNone) return FromDecodeError(decode_error);
  message.payload = nullptr;
  const ProtocolError error = Land(landing, message, budget_bytes);
  if (error != ProtocolError::kNone) return error;
  ++taken_.records;
  message_ = &pool_.Lend();
  return ProtocolError::kNone;
}

// Sets source_ to the payload, unless the payload is in the arena.
ProtocolError RingReceiver::FindSource(const RingRecord& record, const wire::MessageHeader& header,
                                       const ReceivedMessage& message) {
  const std::uint32_t bytes = header.payload_bytes;
  source_ = nullptr;
  if (record.place > static_cast<std::uint64_t>(PayloadPlace::kSlot)) {
    return ProtocolError::kSharedRange;
  }
  const auto place = static_cast<PayloadPlace>(record.place);
  if ((place == PayloadPlace::kNone) != (bytes == 0)) return ProtocolError::kPayloadBytes;
  // Payload that is not received into a slot must be in the record.
  if (place != PayloadPlace::kNone && place != PayloadPlace::kRecord && !LandsInSlot(header.kind)) {
    return ProtocolError::kSharedRange;
  }
  switch (place) {
    case PayloadPlace::kNone:
    case PayloadPlace::kArena: return ProtocolError::kNone;
    case PayloadPlace::kRecord:
      if (bytes > message.inline_payload.size()) return ProtocolError::kPayloadBytes;
      source_ = record.payload.data();
      return ProtocolError::kNone;
    case PayloadPlace::kRegion:
      if (regions_ != nullptr) source_ = regions_->ResolveForReading({record.address}, bytes);
      break;
    case PayloadPlace::kSlot:
      if (bytes <= slots_.bytes) source_ = slots_.slot(header.slot);
      break;
  }
  return source_ != nullptr ? ProtocolError::kNone : ProtocolError::kSharedRange;
}

// Decides where the payload goes, and copies it there unless it is in the arena.
ProtocolError RingReceiver::Land(std::span<const LandingSlot> landing, ReceivedMessage& message,
                                 std::size_t& budget_bytes) {
  const wire::MessageHeader& header = message.header;
  const std::uint32_t bytes = header.payload_bytes;
  const ProtocolError error = FindSource(record_, header, message);
  if (error != ProtocolError::kNone) return error;
  payload_have_ = bytes;  // reset below if the payload is in the arena
  if (!LandsInSlot(header.kind)) {
    if (bytes == 0) return ProtocolError::kNone;
    std::memcpy(message.inline_payload.data(), source_, bytes);
    message.payload = message.inline_payload.data();
    return ProtocolError::kNone;
  }
  const bool in_region = record_.place == static_cast<std::uint64_t>(PayloadPlace::kRegion);
  if (header.kind == wire::MessageKind::kGradient && header.slot == kNoSlot &&
      (in_region || bytes == 0)) {
    message.payload = source_;  // read in place
    return ProtocolError::kNone;
  }
  if (header.slot.value >= landing.size()) return ProtocolError::kSlotRange;
  const LandingSlot& slot = landing[header.slot.value];
  if (slot.data == nullptr) return ProtocolError::kSlotClosed;
  if (bytes > slot.bytes_max) return ProtocolError::kSlotBytes;
  if (bytes == 0) return ProtocolError::kNone;
  message.payload = slot.data;
  if (source_ == slot.data) return ProtocolError::kNone;
  if (slot.read_only) return ProtocolError::kSlotReadOnly;
  if (source_ != nullptr) {
    std::memmove(slot.data, source_, bytes);  // both may be in one region
    budget_bytes -= std::min<std::size_t>(budget_bytes, bytes);
    return ProtocolError::kNone;
  }
  destination_ = slot.data;
  payload_have_ = 0;
  return ProtocolError::kNone;
}

ProtocolError RingReceiver::CheckLanding(std::span<const LandingSlot> landing) const {
  PHUB_DCHECK(inside_message());
  const wire::MessageHeader& header = message_->header;
  if (header.slot.value >= landing.size()) return ProtocolError::kSlotRange;
  const LandingSlot& slot = landing[header.slot.value];
  if (slot.data != destination_) return ProtocolError::kSlotClosed;
  if (header.payload_bytes > slot.bytes_max) return ProtocolError::kSlotBytes;
  return slot.read_only ? ProtocolError::kSlotReadOnly : ProtocolError::kNone;
}

bool RingReceiver::TakeBytes(std::size_t& budget_bytes, Result& stop) {
  if (budget_bytes == 0) {
    stop.outcome = Outcome::kYield;
    return false;
  }
  const std::uint64_t available =
      LoadShared(ring_.indices->written.bytes, std::memory_order_acquire) - taken_.bytes;
  if (available > ring_.arena_bytes) {
    stop = {.outcome = Outcome::kBroken, .error = ProtocolError::kRing};
    return false;
  }
  PHUB_CHECK(payload_have_ < message_->header.payload_bytes, "have={} of={}", payload_have_,
             message_->header.payload_bytes);
  const std::size_t rest = message_->header.payload_bytes - payload_have_;
  const std::size_t count = std::min<std::size_t>(available, rest);
  if (count == 0) {
    stop.outcome = Outcome::kBlocked;
    return false;
  }
  ForArenaParts(taken_.bytes, count, ring_.arena_bytes,
                [&](std::size_t offset, std::size_t to, std::size_t part) {
                  std::memcpy(destination_ + payload_have_ + to, ring_.arena + offset, part);
                });
  taken_.bytes += count;
  payload_have_ += count;
  budget_bytes -= std::min(budget_bytes, count);
  return true;
}

void RingReceiver::CheckInvariants() const {
  pool_.CheckInvariants();
  PHUB_CHECK(written_records_ - taken_.records <= ring_.record_count, "G3 written={} taken={}",
             written_records_, taken_.records);
  PHUB_CHECK(published_.records <= taken_.records && published_.bytes <= taken_.bytes,
             "G3 published={} taken={}", published_.records, taken_.records);
  if (message_ == nullptr) return;
  PHUB_CHECK(payload_have_ < message_->header.payload_bytes && destination_ != nullptr,
             "R2 have={} of={}", payload_have_, message_->header.payload_bytes);
}

bool RingReceiver::HasMore() const {
  const RingPosition written = PeersPosition();
  return message_ == nullptr ? written.records != taken_.records : written.bytes != taken_.bytes;
}

void RingReceiver::Publish() {
  if (taken_ == published_) return;
  StoreShared(ring_.indices->read.records, taken_.records, std::memory_order_seq_cst);
  StoreShared(ring_.indices->read.bytes, taken_.bytes, std::memory_order_seq_cst);
  published_ = taken_;
  unannounced_ = true;
}

bool RingReceiver::TakePeerSleeps() {
  if (!unannounced_) return false;
  unannounced_ = false;
  return TakeSleeps(ring_.indices->sender_sleeps);
}

void RingReceiver::Sleep(std::uint32_t messages) {
  // The record of a partly received message is already counted in taken_.records.
  const std::uint32_t half = message_ == nullptr ? 0 : 1;
  const auto target = static_cast<std::uint32_t>(taken_.records + messages - half);
  StoreShared(ring_.indices->receiver_awaits, target, std::memory_order_relaxed);
  SetSleeps(ring_.indices->receiver_sleeps, true);
}

void RingReceiver::WakeUp() { SetSleeps(ring_.indices->receiver_sleeps, false); }

std::uint64_t RingReceiver::PeersActivity() const {
  const RingPosition written = PeersPosition();
  return written.records + written.bytes +
         LoadShared(ring_.indices->sender_alive, std::memory_order_relaxed);
}

RingPosition RingReceiver::PeersPosition() const { return LoadPosition(ring_.indices->written); }

void RingReceiver::Release(const ReceivedMessage* message) {
  if (message != message_) pool_.Release(message);  // message_ is still being received
}

}  // namespace phub::transport
