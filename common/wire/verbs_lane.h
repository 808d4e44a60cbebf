// Messages between the two ends of a verbs lane. Little-endian; fixed sizes; unused bytes are zero.
// Pure functions, any thread.
//
// The handshake, over a TCP connection to the daemon's data port:
//   1. client: LaneHello with the magic "PHLV", then a VerbsOffer
//   2. daemon: LaneWelcome; if it accepts, then its VerbsOffer
//   3. client, once its queue pair is connected: the byte kVerbsReady
// The lane is open after step 3. If either end disconnects earlier, only the nonce is lost.
//   VerbsOffer   (72 bytes): magic u32 "PHVO", mtu u8, ack_timeout u8, lid u16, queue_pair u32,
//                            packet_sequence u32, gid 16 bytes, inbox_address u64, inbox_bytes u32,
//                            inbox_key u32, messages_max u32, slot_count u32, slot_bytes u32,
//                            zero u32, slots_address u64
// On the lane, announced by an immediate once it is in the inbox:
//   VerbsControl (64 bytes): magic u32 "PHVC", kind u8, zero 3 bytes, and by kind
//     kKeys   (daemon -> client): inbox_key u32, slots_key u32, zero 48 bytes
//     kRegion (client -> daemon): index u32, key u32, address u64, bytes u64, zero 32 bytes
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/wire/lane_hello.h"

namespace phub::wire {

inline constexpr std::size_t kVerbsOfferBytes = 72;
inline constexpr std::size_t kVerbsControlBytes = 64;
inline constexpr std::byte kVerbsReady{0x52};  // 'R'

inline constexpr std::uint32_t kQueuePairNumberMax = (1u << 24) - 1;
inline constexpr std::uint32_t kPacketSequenceMax = (1u << 24) - 1;
inline constexpr std::uint8_t kVerbsMtuMin = 1;  // 256 bytes, as InfiniBand counts them
inline constexpr std::uint8_t kVerbsMtuMax = 5;  // 4096 bytes
inline constexpr std::uint8_t kAckTimeoutMax = 31;
// The inbox size is a power of two. Messages, and inbox units of 64 bytes, are counted modulo 2^15.
inline constexpr std::uint32_t kInboxBytesMin = 4096;
inline constexpr std::uint32_t kInboxBytesMax = 1u << 20;
inline constexpr std::uint32_t kVerbsMessagesMin = 4;
inline constexpr std::uint32_t kVerbsMessagesMax = 1u << 14;
// Each slot starts with the header of its gradient; the payload follows.
inline constexpr std::uint32_t kSlotHeaderBytes = 64;

struct VerbsOffer {
  std::uint8_t mtu = kVerbsMtuMin;  // the port's
  std::uint8_t ack_timeout = 1;     // 4.1 us * 2^ack_timeout; both ends use the daemon's
  std::uint16_t lid = 0;            // InfiniBand; 0 on RoCE
  std::uint32_t queue_pair = 0;
  std::uint32_t packet_sequence = 0;  // number of the first packet that this end sends
  std::array<std::byte, 16> gid{};
  std::uint64_t inbox_address = 0;
  std::uint32_t inbox_bytes = 0;
  std::uint32_t inbox_key = 0;     // 0: kKeys will send it
  std::uint32_t messages_max = 0;  // maximum number of messages in flight to this end
  // Staging slot i has kSlotHeaderBytes and then slot_bytes, and starts at
  // slots_address + i * (kSlotHeaderBytes + slot_bytes). kKeys sends the slots' memory key.
  std::uint32_t slot_count = 0;
  std::uint32_t slot_bytes = 0;
  std::uint64_t slots_address = 0;
  friend bool operator==(const VerbsOffer&, const VerbsOffer&) = default;
};

enum class VerbsControlKind : std::uint8_t { kKeys = 1, kRegion = 2 };

struct VerbsControl {
  VerbsControlKind kind = VerbsControlKind::kKeys;
  std::uint32_t inbox_key = 0;  // kKeys
  std::uint32_t slots_key = 0;
  std::uint32_t index = 0;  // kRegion: the region's index
  std::uint32_t key = 0;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const VerbsControl&, const VerbsControl&) = default;
};

// A LaneHello with the magic of a verbs lane.
void EncodeVerbsHello(const LaneHello& hello, std::span<std::byte, kLaneHelloBytes> bytes);
[[nodiscard]] bool DecodeVerbsHello(std::span<const std::byte> bytes, LaneHello& hello);

void EncodeVerbsOffer(const VerbsOffer& offer, std::span<std::byte, kVerbsOfferBytes> bytes);
// False unless size, magic and zero fields are valid, every number is within its limits, and no
// memory range wraps around the address space.
[[nodiscard]] bool DecodeVerbsOffer(std::span<const std::byte> bytes, VerbsOffer& offer);

void EncodeVerbsControl(const VerbsControl& control,
                        std::span<std::byte, kVerbsControlBytes> bytes);
[[nodiscard]] bool DecodeVerbsControl(std::span<const std::byte> bytes, VerbsControl& control);

}  // namespace phub::wire
