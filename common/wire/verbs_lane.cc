#include "common/wire/verbs_lane.h"

#include <algorithm>
#include <bit>

#include "common/base/ids.h"
#include "common/wire/little_endian.h"

namespace phub::wire {
namespace {

constexpr std::uint32_t kOfferMagic = 0x4F564850;    // "PHVO" in memory
constexpr std::uint32_t kControlMagic = 0x43564850;  // "PHVC" in memory

// Offsets; verbs_lane.h lists the fields.
constexpr std::size_t kMtuAt = 4;
constexpr std::size_t kAckTimeoutAt = 5;
constexpr std::size_t kLidAt = 6;
constexpr std::size_t kQueuePairAt = 8;
constexpr std::size_t kSequenceAt = 12;
constexpr std::size_t kGidAt = 16;
constexpr std::size_t kInboxAddressAt = 32;
constexpr std::size_t kInboxBytesAt = 40;
constexpr std::size_t kInboxKeyAt = 44;
constexpr std::size_t kMessagesMaxAt = 48;
constexpr std::size_t kSlotCountAt = 52;
constexpr std::size_t kSlotBytesAt = 56;
constexpr std::size_t kOfferZero2At = 60;
constexpr std::size_t kSlotsAddressAt = 64;
static_assert(kSlotsAddressAt + 8 == kVerbsOfferBytes);

constexpr std::size_t kControlKindAt = 4;
constexpr std::size_t kControlZeroAt = 5;
constexpr std::size_t kControlFirstAt = 8;
constexpr std::size_t kControlSecondAt = 12;
constexpr std::size_t kControlAddressAt = 16;
constexpr std::size_t kControlRegionBytesAt = 24;
constexpr std::size_t kControlZero2At = 32;

template <typename T>
T Load(std::span<const std::byte> bytes, std::size_t at) {
  return LoadLittleEndian<T>(bytes.data() + at);
}

bool Wraps(std::uint64_t address, std::uint64_t bytes) { return address + bytes < address; }

bool SlotsFit(const VerbsOffer& offer) {
  if (offer.slot_count == 0) return offer.slot_bytes == 0 && offer.slots_address == 0;
  if (offer.slot_count > kSlotsPerLaneMax) return false;
  // slot_bytes is a multiple of kSlotHeaderBytes, which aligns all slot headers like the first.
  if (offer.slot_bytes == 0 || offer.slot_bytes > kChunkBytesMax) return false;
  if (offer.slot_bytes % kSlotHeaderBytes != 0) return false;
  const std::uint64_t bytes =
      std::uint64_t{offer.slot_count} * (kSlotHeaderBytes + offer.slot_bytes);
  return offer.slots_address != 0 && !Wraps(offer.slots_address, bytes);
}

}  // namespace

void EncodeVerbsHello(const LaneHello& hello, std::span<std::byte, kLaneHelloBytes> bytes) {
  EncodeHello(kVerbsHelloMagic, hello, bytes);
}

bool DecodeVerbsHello(std::span<const std::byte> bytes, LaneHello& hello) {
  return DecodeHello(kVerbsHelloMagic, bytes, hello);
}

void EncodeVerbsOffer(const VerbsOffer& offer, std::span<std::byte, kVerbsOfferBytes> bytes) {
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  std::byte* const at = bytes.data();
  StoreLittleEndian(kOfferMagic, at);
  StoreLittleEndian(offer.mtu, at + kMtuAt);
  StoreLittleEndian(offer.ack_timeout, at + kAckTimeoutAt);
  StoreLittleEndian(offer.lid, at + kLidAt);
  StoreLittleEndian(offer.queue_pair, at + kQueuePairAt);
  StoreLittleEndian(offer.packet_sequence, at + kSequenceAt);
  std::copy(offer.gid.begin(), offer.gid.end(), at + kGidAt);
  StoreLittleEndian(offer.inbox_address, at + kInboxAddressAt);
  StoreLittleEndian(offer.inbox_bytes, at + kInboxBytesAt);
  StoreLittleEndian(offer.inbox_key, at + kInboxKeyAt);
  StoreLittleEndian(offer.messages_max, at + kMessagesMaxAt);
  StoreLittleEndian(offer.slot_count, at + kSlotCountAt);
  StoreLittleEndian(offer.slot_bytes, at + kSlotBytesAt);
  StoreLittleEndian(offer.slots_address, at + kSlotsAddressAt);
}

bool DecodeVerbsOffer(std::span<const std::byte> bytes, VerbsOffer& offer) {
  if (bytes.size() != kVerbsOfferBytes || Load<std::uint32_t>(bytes, 0) != kOfferMagic ||
      !AllZero(bytes.subspan(kOfferZero2At, 4))) {
    return false;
  }
  VerbsOffer read;
  read.mtu = Load<std::uint8_t>(bytes, kMtuAt);
  read.ack_timeout = Load<std::uint8_t>(bytes, kAckTimeoutAt);
  read.lid = Load<std::uint16_t>(bytes, kLidAt);
  read.queue_pair = Load<std::uint32_t>(bytes, kQueuePairAt);
  read.packet_sequence = Load<std::uint32_t>(bytes, kSequenceAt);
  std::copy_n(bytes.begin() + kGidAt, read.gid.size(), read.gid.begin());
  read.inbox_address = Load<std::uint64_t>(bytes, kInboxAddressAt);
  read.inbox_bytes = Load<std::uint32_t>(bytes, kInboxBytesAt);
  read.inbox_key = Load<std::uint32_t>(bytes, kInboxKeyAt);
  read.messages_max = Load<std::uint32_t>(bytes, kMessagesMaxAt);
  read.slot_count = Load<std::uint32_t>(bytes, kSlotCountAt);
  read.slot_bytes = Load<std::uint32_t>(bytes, kSlotBytesAt);
  read.slots_address = Load<std::uint64_t>(bytes, kSlotsAddressAt);
  const bool fits =
      read.mtu >= kVerbsMtuMin && read.mtu <= kVerbsMtuMax && read.ack_timeout >= 1 &&
      read.ack_timeout <= kAckTimeoutMax && read.queue_pair > 0 &&
      read.queue_pair <= kQueuePairNumberMax && read.packet_sequence <= kPacketSequenceMax &&
      std::has_single_bit(read.inbox_bytes) && read.inbox_bytes >= kInboxBytesMin &&
      read.inbox_bytes <= kInboxBytesMax && read.inbox_address != 0 &&
      !Wraps(read.inbox_address, read.inbox_bytes) && read.messages_max >= kVerbsMessagesMin &&
      read.messages_max <= kVerbsMessagesMax && SlotsFit(read);
  if (fits) offer = read;
  return fits;
}

void EncodeVerbsControl(const VerbsControl& control,
                        std::span<std::byte, kVerbsControlBytes> bytes) {
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  std::byte* const at = bytes.data();
  const bool keys = control.kind == VerbsControlKind::kKeys;
  StoreLittleEndian(kControlMagic, at);
  StoreLittleEndian(static_cast<std::uint8_t>(control.kind), at + kControlKindAt);
  StoreLittleEndian(keys ? control.inbox_key : control.index, at + kControlFirstAt);
  StoreLittleEndian(keys ? control.slots_key : control.key, at + kControlSecondAt);
  if (keys) return;
  StoreLittleEndian(control.address, at + kControlAddressAt);
  StoreLittleEndian(control.bytes, at + kControlRegionBytesAt);
}

bool DecodeVerbsControl(std::span<const std::byte> bytes, VerbsControl& control) {
  if (bytes.size() != kVerbsControlBytes || Load<std::uint32_t>(bytes, 0) != kControlMagic ||
      !AllZero(bytes.subspan(kControlZeroAt, 3)) || !AllZero(bytes.subspan(kControlZero2At))) {
    return false;
  }
  VerbsControl read;
  const auto first = Load<std::uint32_t>(bytes, kControlFirstAt);
  const auto second = Load<std::uint32_t>(bytes, kControlSecondAt);
  switch (Load<std::uint8_t>(bytes, kControlKindAt)) {
    case static_cast<std::uint8_t>(VerbsControlKind::kKeys):
      if (!AllZero(bytes.subspan(kControlAddressAt))) return false;
      read.kind = VerbsControlKind::kKeys;
      read.inbox_key = first;
      read.slots_key = second;
      break;
    case static_cast<std::uint8_t>(VerbsControlKind::kRegion):
      read.kind = VerbsControlKind::kRegion;
      read.index = first;
      read.key = second;
      read.address = Load<std::uint64_t>(bytes, kControlAddressAt);
      read.bytes = Load<std::uint64_t>(bytes, kControlRegionBytesAt);
      if (read.bytes == 0 || Wraps(read.address, read.bytes)) return false;
      break;
    default: return false;
  }
  control = read;
  return true;
}

}  // namespace phub::wire
