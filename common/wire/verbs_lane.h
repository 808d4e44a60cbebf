// What the two ends of a verbs lane tell each other. Little-endian; fixed sizes; zero where nothing
// is said. Pure functions, any thread.
//
// Before the lane, over a connection to the daemon's data port. The client: a LaneHello with the
// magic "PHLV", behind it a VerbsOffer. The daemon: a LaneWelcome, and if that is one, behind it
// its VerbsOffer. The client again, once its end is connected: kVerbsReady, a byte. Before that
// there is no lane, and either may go away: nothing is lost but the nonce.
//   VerbsOffer   (72 bytes): magic u32 "PHVO", mtu u8, ack_timeout u8, lid u16, queue_pair u32,
//                            packet_sequence u32, gid 16 bytes, inbox_address u64, inbox_bytes u32,
//                            inbox_key u32, messages_max u32, slot_count u32, slot_bytes u32,
//                            zero u32, slots_address u64
// On the lane, where an immediate says that one lies in the inbox:
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
// The inbox is a power of two. Its bytes and messages are counted modulo 2^15 (of 64 bytes each).
inline constexpr std::uint32_t kInboxBytesMin = 4096;
inline constexpr std::uint32_t kInboxBytesMax = 1u << 20;
inline constexpr std::uint32_t kVerbsMessagesMin = 4;
inline constexpr std::uint32_t kVerbsMessagesMax = 1u << 14;
// Before the payload of every slot: the header of the gradient that lies there.
inline constexpr std::uint32_t kSlotHeaderBytes = 64;

struct VerbsOffer {
  std::uint8_t mtu = kVerbsMtuMin;  // of the port
  std::uint8_t ack_timeout = 1;     // the daemon's holds for both ends: 4.1 us * 2^this
  std::uint16_t lid = 0;            // InfiniBand; 0 on RoCE
  std::uint32_t queue_pair = 0;
  std::uint32_t packet_sequence = 0;  // the first that this end sends
  std::array<std::byte, 16> gid{};
  std::uint64_t inbox_address = 0;
  std::uint32_t inbox_bytes = 0;
  std::uint32_t inbox_key = 0;     // 0: to come by kKeys
  std::uint32_t messages_max = 0;  // that may be on their way to this end
  // Staging slots: number i is kSlotHeaderBytes and then slot_bytes, from slots_address +
  // i * (kSlotHeaderBytes + slot_bytes) on. Their key comes by kKeys.
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
  std::uint32_t index = 0;  // kRegion: which
  std::uint32_t key = 0;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const VerbsControl&, const VerbsControl&) = default;
};

// A LaneHello of a lane over verbs.
void EncodeVerbsHello(const LaneHello& hello, std::span<std::byte, kLaneHelloBytes> bytes);
[[nodiscard]] bool DecodeVerbsHello(std::span<const std::byte> bytes, LaneHello& hello);

void EncodeVerbsOffer(const VerbsOffer& offer, std::span<std::byte, kVerbsOfferBytes> bytes);
// False unless the form is right: size, magic, zero fields, every number within its limits, and
// memory that does not wrap around the address space.
[[nodiscard]] bool DecodeVerbsOffer(std::span<const std::byte> bytes, VerbsOffer& offer);

void EncodeVerbsControl(const VerbsControl& control,
                        std::span<std::byte, kVerbsControlBytes> bytes);
[[nodiscard]] bool DecodeVerbsControl(std::span<const std::byte> bytes, VerbsControl& control);

}  // namespace phub::wire
