#include "common/transport/stream/receiver.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/transport/form.h"

namespace phub::transport {
namespace {

StreamReceiver::Result Ended(TransportError error, ProtocolError protocol_error) {
  return {StreamReceiver::Outcome::kEnded, error, protocol_error, nullptr};
}

}  // namespace

StreamReceiver::StreamReceiver(std::uint32_t message_count) : pool_(message_count) {}

StreamReceiver::Result StreamReceiver::Receive(ByteStream& stream,
                                               std::span<const LandingSlot> landing, bool& readable,
                                               std::size_t& budget_bytes) {
  for (;;) {
    Result stop;
    if (message_ == nullptr) {
      if (stash_size() < wire::kHeaderBytes) {
        if (!ReadHeader(stream, readable, budget_bytes, stop)) return stop;
        continue;
      }
      if (pool_.empty()) return {.outcome = Outcome::kStarved};
      const ProtocolError error = StartMessage(landing);
      if (error != ProtocolError::kNone) return Ended(TransportError::kProtocol, error);
    } else {
      // The owner may have changed the table since the header came.
      const ProtocolError error = CheckLanding(landing);
      if (error != ProtocolError::kNone) return Ended(TransportError::kProtocol, error);
    }
    TakeStashedPayload();
    if (payload_have_ == message_->header.payload_bytes) {
      const ReceivedMessage* whole = std::exchange(message_, nullptr);
      return {.outcome = Outcome::kMessage, .message = whole};
    }
    if (!ReadPayload(stream, readable, budget_bytes, stop)) return stop;
  }
}

void StreamReceiver::CheckInvariants() const {
  pool_.CheckInvariants();
  PHUB_CHECK(stash_begin_ <= stash_end_ && stash_end_ <= stash_.size(), "R1 begin={} end={}",
             stash_begin_, stash_end_);
  if (message_ == nullptr) return;
  // Stashed bytes go to the payload before more is read.
  PHUB_CHECK(payload_have_ < message_->header.payload_bytes && payload_ != nullptr,
             "R2 have={} of={}", payload_have_, message_->header.payload_bytes);
  PHUB_CHECK(stash_size() == 0 && pool_.lent_count() > 0, "R2 stash={}", stash_size());
}

bool StreamReceiver::ReadHeader(ByteStream& stream, bool& readable, std::size_t& budget_bytes,
                                Result& ended) {
  if (!readable || budget_bytes == 0) {
    ended.outcome = readable ? Outcome::kYield : Outcome::kBlocked;
    return false;
  }
  const std::size_t have = stash_size();
  std::memmove(stash_.data(), stash_.data() + stash_begin_, have);
  stash_begin_ = 0;
  stash_end_ = have;
  const iovec part{stash_.data() + have, stash_.size() - have};
  const IoResult io = stream.Readv({&part, 1});
  if (!Account(io, readable, budget_bytes, ended)) return false;
  PHUB_CHECK(io.bytes <= part.iov_len, "bytes={} asked={}", io.bytes, part.iov_len);
  stash_end_ += io.bytes;
  return true;
}

bool StreamReceiver::ReadPayload(ByteStream& stream, bool& readable, std::size_t& budget_bytes,
                                 Result& ended) {
  if (!readable || budget_bytes == 0) {
    ended.outcome = readable ? Outcome::kYield : Outcome::kBlocked;
    return false;
  }
  PHUB_DCHECK(stash_size() == 0);
  const std::size_t rest = message_->header.payload_bytes - payload_have_;
  const iovec parts[2] = {{payload_ + payload_have_, rest}, {stash_.data(), kStashBytes}};
  const IoResult io = stream.Readv(parts);
  if (!Account(io, readable, budget_bytes, ended)) return false;
  PHUB_CHECK(io.bytes <= rest + kStashBytes, "bytes={} rest={}", io.bytes, rest);
  const std::size_t of_payload = std::min(io.bytes, rest);
  payload_have_ += of_payload;
  stash_begin_ = 0;
  stash_end_ = io.bytes - of_payload;
  return true;
}

bool StreamReceiver::Account(const IoResult& io, bool& readable, std::size_t& budget_bytes,
                             Result& ended) {
  if (io.status == IoStatus::kReset) {
    ended = Ended(TransportError::kReset, ProtocolError::kNone);
    return false;
  }
  if (io.status == IoStatus::kClosed) {
    const bool inside = message_ != nullptr || stash_size() > 0;
    ended = Ended(TransportError::kPeerClosed,
                  inside ? ProtocolError::kTruncated : ProtocolError::kNone);
    return false;
  }
  if (io.status == IoStatus::kDrained) readable = false;
  received_bytes_ += io.bytes;
  budget_bytes -= std::min(budget_bytes, io.bytes);
  return true;
}

ProtocolError StreamReceiver::StartMessage(std::span<const LandingSlot> landing) {
  ReceivedMessage& message = pool_.next();
  const std::span<const std::byte> bytes(stash_.data() + stash_begin_, wire::kHeaderBytes);
  const wire::DecodeError decode_error = wire::DecodeHeader(bytes, message.header);
  if (decode_error != wire::DecodeError::kNone) return FromDecodeError(decode_error);
  const bool lands_nowhere = message.header.kind == wire::MessageKind::kGradient &&
                             message.header.slot == kNoSlot && message.header.payload_bytes == 0;
  if (lands_nowhere) {
    payload_ = nullptr;
  } else if (LandsInSlot(message.header.kind)) {
    const std::uint32_t slot = message.header.slot.value;
    if (slot >= landing.size()) return ProtocolError::kSlotRange;
    if (landing[slot].data == nullptr) return ProtocolError::kSlotClosed;
    if (message.header.payload_bytes > landing[slot].bytes_max) return ProtocolError::kSlotBytes;
    if (landing[slot].read_only && message.header.payload_bytes > 0) {
      return ProtocolError::kSlotReadOnly;
    }
    payload_ = landing[slot].data;
  } else {
    // The decoder has checked the length: at most kInlineBytesMax for a record, 0 for a credit.
    PHUB_CHECK(message.header.payload_bytes <= message.inline_payload.size());
    payload_ = message.inline_payload.data();
  }
  message.payload = message.header.payload_bytes > 0 ? payload_ : nullptr;
  message_ = &pool_.Lend();
  payload_have_ = 0;
  stash_begin_ += wire::kHeaderBytes;
  return ProtocolError::kNone;
}

ProtocolError StreamReceiver::CheckLanding(std::span<const LandingSlot> landing) const {
  const wire::MessageHeader& header = message_->header;
  if (!LandsInSlot(header.kind)) return ProtocolError::kNone;
  if (header.slot.value >= landing.size()) return ProtocolError::kSlotRange;
  const LandingSlot& slot = landing[header.slot.value];
  if (slot.data != payload_) return ProtocolError::kSlotClosed;
  if (header.payload_bytes > slot.bytes_max) return ProtocolError::kSlotBytes;
  return ProtocolError::kNone;
}

void StreamReceiver::TakeStashedPayload() {
  const std::size_t bytes =
      std::min<std::size_t>(stash_size(), message_->header.payload_bytes - payload_have_);
  if (bytes == 0) return;
  std::memcpy(payload_ + payload_have_, stash_.data() + stash_begin_, bytes);
  payload_have_ += bytes;
  stash_begin_ += bytes;
}

void StreamReceiver::Release(const ReceivedMessage* message) {
  if (message != message_) pool_.Release(message);  // message_ is still being received
}

}  // namespace phub::transport
