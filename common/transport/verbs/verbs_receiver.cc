#include "common/transport/verbs/verbs_receiver.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/transport/form.h"
#include "common/transport/shared_words.h"

namespace phub::transport {
namespace {

// kTaken is sent when this share of the peer's window was received: often enough that the peer does
// not wait long, and seldom enough that kTaken messages need few receives.
constexpr std::uint32_t kTellShare = 4;

using HeaderBytes = std::array<std::byte, wire::kHeaderBytes>;

HeaderBytes CopyHeader(const std::byte* from) {
  alignas(std::uint64_t) HeaderBytes bytes;
  CopyWords(reinterpret_cast<const std::uint64_t*>(from),
            reinterpret_cast<std::uint64_t*>(bytes.data()), bytes.size() / sizeof(std::uint64_t));
  return bytes;
}

// Checks the landing slot of a payload that is to be written there, or is already there.
ProtocolError CheckSlot(const wire::MessageHeader& header, std::span<const LandingSlot> landing) {
  if (header.slot.value >= landing.size()) return ProtocolError::kSlotRange;
  const LandingSlot& slot = landing[header.slot.value];
  if (slot.data == nullptr) return ProtocolError::kSlotClosed;
  return header.payload_bytes > slot.bytes_max ? ProtocolError::kSlotBytes : ProtocolError::kNone;
}

}  // namespace

VerbsReceiver::VerbsReceiver(VerbsEnd end, const VerbsReceiveMemory& memory,
                             std::uint32_t messages_max, std::uint32_t received_lent)
    : end_(end),
      memory_(memory),
      messages_max_(messages_max),
      pool_(received_lent),
      arrivals_(std::make_unique<Arrival[]>(messages_max)),
      asked_memory_(end == VerbsEnd::kClient
                        ? MappedMemory::Allocate(std::size_t{kChunksPerShardMax} * sizeof(Asked),
                                                 MappedMemory::Backing::kOnTouch)
                        : MappedMemory{}) {
  PHUB_CHECK(messages_max > 0 && memory.inbox != nullptr &&
                 std::has_single_bit(memory.inbox_bytes) && memory.inbox_bytes >= kInboxUnitBytes,
             "messages_max={} inbox_bytes={}", messages_max, memory.inbox_bytes);
}

void VerbsReceiver::NoteAsked(const wire::MessageHeader& header) {
  if (end_ != VerbsEnd::kClient || header.chunk.value >= kChunksPerShardMax) return;
  incarnation_ = header.incarnation.value;
  membership_epoch_ = header.membership_epoch.value;
  auto* const asked = reinterpret_cast<Asked*>(asked_memory_.data());
  asked[header.chunk.value] = {.iteration = header.iteration, .key = header.key, .open = true};
}

// ---- Arrivals ----------------------------------------------------------------------------------

ProtocolError VerbsReceiver::Arrived(std::uint32_t immediate, std::uint32_t bytes,
                                     wire::VerbsControl& control, bool& has_control) {
  has_control = false;
  if (arrivals_put_ - arrivals_taken_ == messages_max_) return ProtocolError::kRing;
  Arrival& arrival = arrivals_[arrivals_put_ % messages_max_];
  arrival = {.immediate = immediate, .bytes = bytes, .units = 0};
  if (KindOf(immediate) == ImmediateKind::kInbox) {
    // The peer fills the inbox in order, and skips its end if a piece does not fit there.
    const InboxImmediate inbox = UnpackInbox(immediate);
    const std::uint32_t size = memory_.inbox_bytes / kInboxUnitBytes;
    const auto at = static_cast<std::uint32_t>(units_arrived_ % size);
    const std::uint32_t wanted = (bytes + kInboxUnitBytes - 1) / kInboxUnitBytes;
    const bool skips = at + wanted > size;
    if (bytes == 0 || wanted > size || inbox.unit != (skips ? 0 : at)) return ProtocolError::kRing;
    arrival.units = wanted + (skips ? size - at : 0);
    if (units_arrived_ + arrival.units - units_taken_ > size) return ProtocolError::kRing;
    units_arrived_ += arrival.units;
    if (inbox.control) {
      alignas(std::uint64_t) std::array<std::byte, wire::kVerbsControlBytes> body =
          CopyHeader(memory_.inbox + std::size_t{inbox.unit} * kInboxUnitBytes);
      if (bytes != body.size() || !wire::DecodeVerbsControl(body, control)) {
        return ProtocolError::kRing;
      }
      has_control = true;
    }
  }
  ++arrivals_put_;
  return ProtocolError::kNone;
}

void VerbsReceiver::TakeArrival() {
  PHUB_CHECK(HasMore(), "put={} taken={}", arrivals_put_, arrivals_taken_);
  units_taken_ += arrivals_[arrivals_taken_ % messages_max_].units;
  ++arrivals_taken_;
  ++messages_taken_;
  ++receives_used_;
}

std::uint32_t VerbsReceiver::TakeUsedReceives() { return std::exchange(receives_used_, 0); }

bool VerbsReceiver::WantsToTell() const {
  return messages_taken_ - messages_told_ >= messages_max_ / kTellShare ||
         (units_taken_ - units_told_) * kInboxUnitBytes >= memory_.inbox_bytes / kTellShare;
}

std::uint32_t VerbsReceiver::TellTaken() {
  messages_told_ = messages_taken_;
  units_told_ = units_taken_;
  return PackTaken(messages_taken_, units_taken_);
}

// ---- Messages ----------------------------------------------------------------------------------

VerbsReceiver::Result VerbsReceiver::Receive(std::span<const LandingSlot> landing,
                                             std::size_t& budget_bytes, VerbsCounters& counters) {
  for (;;) {
    if (budget_bytes == 0) return {.outcome = Outcome::kYield};
    if (!HasMore()) return {.outcome = Outcome::kBlocked};
    const Arrival arrival = arrivals_[arrivals_taken_ % messages_max_];
    const bool control = KindOf(arrival.immediate) == ImmediateKind::kInbox &&
                         UnpackInbox(arrival.immediate).control;
    ProtocolError error = ProtocolError::kNone;
    if (control) {  // was handled on arrival
      if (message_ != nullptr) error = ProtocolError::kRing;
    } else if (message_ != nullptr) {
      error = ContinueInbox(arrival, landing, budget_bytes, counters);
    } else if (pool_.empty()) {
      return {.outcome = Outcome::kStarved};
    } else {
      switch (KindOf(arrival.immediate)) {
        case ImmediateKind::kSlot:
          error = TakeSlot(arrival, landing);
          if (error == ProtocolError::kNone) counters.slot_arrivals.Add();
          break;
        case ImmediateKind::kReply: error = TakeReply(arrival, landing); break;
        case ImmediateKind::kInbox:
          error = StartInbox(arrival, landing, budget_bytes, counters);
          break;
        case ImmediateKind::kTaken: error = ProtocolError::kRing; break;
      }
    }
    if (error != ProtocolError::kNone) return {.outcome = Outcome::kBroken, .error = error};
    TakeArrival();
    if (message_ != nullptr && payload_have_ == message_->header.payload_bytes) {
      return {.outcome = Outcome::kMessage, .message = std::exchange(message_, nullptr)};
    }
  }
}

void VerbsReceiver::StartMessage(const std::byte* payload, std::size_t payload_have) {
  PHUB_DCHECK(!inside_message() && !pool_.empty());
  message_ = &pool_.Lend();
  message_->payload = payload;
  payload_have_ = payload_have;
}

// Receives a gradient: it is in its slot, after its header.
ProtocolError VerbsReceiver::TakeSlot(const Arrival& arrival,
                                      std::span<const LandingSlot> landing) {
  const std::uint32_t index = ValueOf(arrival.immediate);
  if (end_ != VerbsEnd::kDaemon || index >= memory_.slot_count) return ProtocolError::kImmediate;
  std::byte* const slot = memory_.slot(index);
  ReceivedMessage& message = pool_.next();
  const wire::DecodeError decode_error = wire::DecodeHeader(CopyHeader(slot), message.header);
  if (decode_error != wire::DecodeError::kNone) return FromDecodeError(decode_error);
  const wire::MessageHeader& header = message.header;
  if (header.kind != wire::MessageKind::kGradient || header.slot.value != index ||
      header.payload_bytes == 0 || arrival.bytes > wire::kHeaderBytes + header.payload_bytes) {
    return ProtocolError::kImmediate;
  }
  if (const ProtocolError error = CheckSlot(header, landing); error != ProtocolError::kNone) {
    return error;
  }
  if (landing[index].data != slot + wire::kSlotHeaderBytes) return ProtocolError::kSlotClosed;
  StartMessage(landing[index].data, header.payload_bytes);
  return ProtocolError::kNone;
}

// Receives a reply: it is at the address that this end has requested. The header is reconstructed
// from the request.
ProtocolError VerbsReceiver::TakeReply(const Arrival& arrival,
                                       std::span<const LandingSlot> landing) {
  const ReplyImmediate reply = UnpackReply(arrival.immediate);
  if (end_ != VerbsEnd::kClient) return ProtocolError::kImmediate;
  const Asked& asked = reinterpret_cast<const Asked*>(asked_memory_.data())[reply.chunk.value];
  if (!asked.open || reply.type == 0 || reply.type > numeric::kElementTypeMax ||
      (asked.iteration.value & kReplyIterationMask) != reply.iteration) {
    return ProtocolError::kImmediate;
  }
  ReceivedMessage& message = pool_.next();
  message.header = {};
  wire::MessageHeader& header = message.header;
  header.kind = wire::MessageKind::kParameters;
  header.type = static_cast<numeric::ElementType>(reply.type);
  header.payload_bytes = arrival.bytes;
  header.incarnation = Incarnation{incarnation_};
  header.membership_epoch = MembershipEpoch{membership_epoch_};
  header.iteration = asked.iteration;
  header.chunk = reply.chunk;
  header.slot = SlotIndex{reply.chunk.value};
  header.key = asked.key;
  if (const ProtocolError error = CheckSlot(header, landing); error != ProtocolError::kNone) {
    return error;
  }
  StartMessage(landing[header.slot.value].data, header.payload_bytes);
  return ProtocolError::kNone;
}

ProtocolError VerbsReceiver::StartInbox(const Arrival& arrival,
                                        std::span<const LandingSlot> landing,
                                        std::size_t& budget_bytes, VerbsCounters& counters) {
  if (arrival.bytes < wire::kHeaderBytes) return ProtocolError::kTruncated;
  const std::byte* const from =
      memory_.inbox + std::size_t{UnpackInbox(arrival.immediate).unit} * kInboxUnitBytes;
  ReceivedMessage& message = pool_.next();
  const wire::DecodeError decode_error = wire::DecodeHeader(CopyHeader(from), message.header);
  if (decode_error != wire::DecodeError::kNone) return FromDecodeError(decode_error);
  const wire::MessageHeader& header = message.header;
  if (!LandsInSlot(header.kind)) {
    if (arrival.bytes != wire::kHeaderBytes + header.payload_bytes) {
      return ProtocolError::kTruncated;
    }
    std::memcpy(message.inline_payload.data(), from + wire::kHeaderBytes, header.payload_bytes);
    StartMessage(header.payload_bytes > 0 ? message.inline_payload.data() : nullptr,
                 header.payload_bytes);
    return ProtocolError::kNone;
  }
  if (const ProtocolError error = LandInbox(arrival, landing, message);
      error != ProtocolError::kNone) {
    return error;
  }
  if (message_->header.payload_bytes > payload_have_) {
    CopyIn(from + wire::kHeaderBytes, arrival.bytes - wire::kHeaderBytes, budget_bytes, counters);
    counters.receives_copied.Add();
  }
  return ProtocolError::kNone;
}

// Decides where the payload of a message in the inbox goes, or finds that it is already there.
ProtocolError VerbsReceiver::LandInbox(const Arrival& arrival, std::span<const LandingSlot> landing,
                                       ReceivedMessage& message) {
  const wire::MessageHeader& header = message.header;
  const bool placed = UnpackInbox(arrival.immediate).placed;
  const std::size_t in_piece = arrival.bytes - wire::kHeaderBytes;
  if (in_piece > header.payload_bytes || (placed && in_piece > 0)) {
    return ProtocolError::kPayloadBytes;
  }
  if (placed && (end_ != VerbsEnd::kClient || header.kind != wire::MessageKind::kParameters)) {
    return ProtocolError::kImmediate;
  }
  if (header.kind == wire::MessageKind::kGradient && header.slot == kNoSlot &&
      header.payload_bytes == 0) {
    StartMessage(nullptr, 0);
    return ProtocolError::kNone;
  }
  if (const ProtocolError error = CheckSlot(header, landing); error != ProtocolError::kNone) {
    return error;
  }
  const LandingSlot& slot = landing[header.slot.value];
  const bool nothing_comes = placed || header.payload_bytes == 0;
  if (!nothing_comes && slot.read_only) return ProtocolError::kSlotReadOnly;
  destination_ = slot.data;
  StartMessage(header.payload_bytes > 0 ? slot.data : nullptr,
               nothing_comes ? header.payload_bytes : 0);
  return ProtocolError::kNone;
}

ProtocolError VerbsReceiver::ContinueInbox(const Arrival& arrival,
                                           std::span<const LandingSlot> landing,
                                           std::size_t& budget_bytes, VerbsCounters& counters) {
  if (KindOf(arrival.immediate) != ImmediateKind::kInbox) return ProtocolError::kRing;
  const InboxImmediate inbox = UnpackInbox(arrival.immediate);
  if (inbox.placed || arrival.bytes > message_->header.payload_bytes - payload_have_) {
    return ProtocolError::kPayloadBytes;
  }
  // The owner may have changed the landing table since the message began.
  if (const ProtocolError error = CheckSlot(message_->header, landing);
      error != ProtocolError::kNone) {
    return error;
  }
  if (landing[message_->header.slot.value].data != destination_) return ProtocolError::kSlotClosed;
  CopyIn(memory_.inbox + std::size_t{inbox.unit} * kInboxUnitBytes, arrival.bytes, budget_bytes,
         counters);
  return ProtocolError::kNone;
}

void VerbsReceiver::CopyIn(const std::byte* from, std::size_t bytes, std::size_t& budget_bytes,
                           VerbsCounters& counters) {
  PHUB_CHECK(bytes <= message_->header.payload_bytes - payload_have_, "bytes={} have={} of={}",
             bytes, payload_have_, message_->header.payload_bytes);
  std::memcpy(destination_ + payload_have_, from, bytes);
  payload_have_ += bytes;
  counters.bytes_copied.Add(bytes);
  budget_bytes -= std::min(budget_bytes, bytes);
}

}  // namespace phub::transport
