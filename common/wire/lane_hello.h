// The handshake that opens a lane: the client sends a LaneHello with the nonce that it received
// from OpenLanes, and the daemon answers with a LaneWelcome. Fixed sizes: no field of a peer's
// message determines an allocation. Little-endian.
//
//   LaneHello   (64 bytes): magic u32 "PHLN", version_min u8, version_max u8, zero u16,
//                           core u32, rank u32, incarnation u64, membership_epoch u32, zero u32,
//                           nonce 16 bytes, zero 16 bytes
//   LaneWelcome (16 bytes): magic u32 "PHLW", version u8 (chosen; 0 if refused), refusal u8,
//                           version_min u8, version_max u8 (the daemon's range), zero 8 bytes
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/ids.h"

namespace phub::wire {

inline constexpr std::size_t kNonceBytes = 16;
inline constexpr std::size_t kLaneHelloBytes = 64;
inline constexpr std::size_t kLaneWelcomeBytes = 16;
using Nonce = std::array<std::byte, kNonceBytes>;

struct LaneHello {
  std::uint8_t version_min = 0;
  std::uint8_t version_max = 0;
  CoreIndex core{};
  Rank rank{};
  Incarnation incarnation{};
  MembershipEpoch membership_epoch{};
  Nonce nonce{};
  friend bool operator==(const LaneHello&, const LaneHello&) = default;
};

enum class LaneRefusal : std::uint8_t {
  kNone = 0,
  kVersion = 1,     // no version in common
  kNonce = 2,       // unknown, used, expired, or issued for another lane
  kJob = 3,         // the job or its membership epoch has ended
  kBusy = 4,        // the same lane is still open over another connection
  kCapacity = 5,    // too many connections
  kEncryption = 6,  // the daemon requires encryption and this lane has none
};
const char* ToString(LaneRefusal refusal);

struct LaneWelcome {
  std::uint8_t version = 0;
  LaneRefusal refusal = LaneRefusal::kNone;
  std::uint8_t version_min = 0;
  std::uint8_t version_max = 0;
  friend bool operator==(const LaneWelcome&, const LaneWelcome&) = default;
};

// Each kind of lane has its own magic.
inline constexpr std::uint32_t kLaneHelloMagic = 0x4E4C4850;   // "PHLN" in memory
inline constexpr std::uint32_t kVerbsHelloMagic = 0x564C4850;  // "PHLV": see verbs_lane.h

void EncodeHello(std::uint32_t magic, const LaneHello& hello,
                 std::span<std::byte, kLaneHelloBytes> bytes);
[[nodiscard]] bool DecodeHello(std::uint32_t magic, std::span<const std::byte> bytes,
                               LaneHello& hello);
void EncodeLaneHello(const LaneHello& hello, std::span<std::byte, kLaneHelloBytes> bytes);
// False unless size, magic, zero fields and version_min <= version_max are valid.
[[nodiscard]] bool DecodeLaneHello(std::span<const std::byte> bytes, LaneHello& hello);
void EncodeLaneWelcome(const LaneWelcome& welcome, std::span<std::byte, kLaneWelcomeBytes> bytes);
[[nodiscard]] bool DecodeLaneWelcome(std::span<const std::byte> bytes, LaneWelcome& welcome);

}  // namespace phub::wire
