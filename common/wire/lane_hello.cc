#include "common/wire/lane_hello.h"

#include <algorithm>

#include "common/wire/little_endian.h"

namespace phub::wire {
namespace {

constexpr std::uint32_t kHelloMagic = 0x4E4C4850;    // "PHLN" in memory
constexpr std::uint32_t kWelcomeMagic = 0x574C4850;  // "PHLW" in memory

// Offsets of LaneHello's fields; lane_hello.h lists them.
constexpr std::size_t kHelloVersionMinAt = 4;
constexpr std::size_t kHelloVersionMaxAt = 5;
constexpr std::size_t kHelloZeroAt = 6;
constexpr std::size_t kHelloCoreAt = 8;
constexpr std::size_t kHelloRankAt = 12;
constexpr std::size_t kHelloIncarnationAt = 16;
constexpr std::size_t kHelloMembershipEpochAt = 24;
constexpr std::size_t kHelloZero2At = 28;
constexpr std::size_t kHelloNonceAt = 32;
constexpr std::size_t kHelloZero3At = kHelloNonceAt + kNonceBytes;
static_assert(kLaneHelloBytes - kHelloZero3At == 16);

// Offsets of LaneWelcome's.
constexpr std::size_t kWelcomeVersionAt = 4;
constexpr std::size_t kWelcomeRefusalAt = 5;
constexpr std::size_t kWelcomeVersionMinAt = 6;
constexpr std::size_t kWelcomeVersionMaxAt = 7;
constexpr std::size_t kWelcomeZeroAt = 8;
static_assert(kLaneWelcomeBytes - kWelcomeZeroAt == 8);

bool RefusalIsKnown(LaneRefusal refusal) {
  switch (refusal) {
    case LaneRefusal::kNone:
    case LaneRefusal::kVersion:
    case LaneRefusal::kNonce:
    case LaneRefusal::kJob:
    case LaneRefusal::kBusy:
    case LaneRefusal::kCapacity:
      return true;
  }
  return false;
}

// Accepted: the version chosen is one that the daemon speaks. Refused: none is chosen.
bool VersionFitsRefusal(const LaneWelcome& welcome) {
  if (welcome.refusal != LaneRefusal::kNone) return welcome.version == 0;
  return welcome.version != 0 && welcome.version >= welcome.version_min &&
         welcome.version <= welcome.version_max;
}

}  // namespace

const char* ToString(LaneRefusal refusal) {
  switch (refusal) {
    case LaneRefusal::kNone:
      return "none";
    case LaneRefusal::kVersion:
      return "version";
    case LaneRefusal::kNonce:
      return "nonce";
    case LaneRefusal::kJob:
      return "job";
    case LaneRefusal::kBusy:
      return "busy";
    case LaneRefusal::kCapacity:
      return "capacity";
  }
  return "unknown";
}

void EncodeLaneHello(const LaneHello& hello, std::span<std::byte, kLaneHelloBytes> bytes) {
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  std::byte* const at = bytes.data();
  StoreLittleEndian(kHelloMagic, at);
  StoreLittleEndian(hello.version_min, at + kHelloVersionMinAt);
  StoreLittleEndian(hello.version_max, at + kHelloVersionMaxAt);
  StoreLittleEndian(hello.core.value, at + kHelloCoreAt);
  StoreLittleEndian(hello.rank.value, at + kHelloRankAt);
  StoreLittleEndian(hello.incarnation.value, at + kHelloIncarnationAt);
  StoreLittleEndian(hello.membership_epoch.value, at + kHelloMembershipEpochAt);
  std::copy(hello.nonce.begin(), hello.nonce.end(), at + kHelloNonceAt);
}

bool DecodeLaneHello(std::span<const std::byte> bytes, LaneHello& hello) {
  if (bytes.size() != kLaneHelloBytes) return false;
  const std::byte* const at = bytes.data();
  if (LoadLittleEndian<std::uint32_t>(at) != kHelloMagic) return false;
  if (!AllZero(bytes.subspan(kHelloZeroAt, kHelloCoreAt - kHelloZeroAt)) ||
      !AllZero(bytes.subspan(kHelloZero2At, kHelloNonceAt - kHelloZero2At)) ||
      !AllZero(bytes.subspan(kHelloZero3At))) {
    return false;
  }
  LaneHello decoded;
  decoded.version_min = LoadLittleEndian<std::uint8_t>(at + kHelloVersionMinAt);
  decoded.version_max = LoadLittleEndian<std::uint8_t>(at + kHelloVersionMaxAt);
  if (decoded.version_min > decoded.version_max) return false;
  decoded.core.value = LoadLittleEndian<std::uint32_t>(at + kHelloCoreAt);
  decoded.rank.value = LoadLittleEndian<std::uint32_t>(at + kHelloRankAt);
  decoded.incarnation.value = LoadLittleEndian<std::uint64_t>(at + kHelloIncarnationAt);
  decoded.membership_epoch.value = LoadLittleEndian<std::uint32_t>(at + kHelloMembershipEpochAt);
  std::copy_n(at + kHelloNonceAt, kNonceBytes, decoded.nonce.begin());
  hello = decoded;
  return true;
}

void EncodeLaneWelcome(const LaneWelcome& welcome, std::span<std::byte, kLaneWelcomeBytes> bytes) {
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  std::byte* const at = bytes.data();
  StoreLittleEndian(kWelcomeMagic, at);
  StoreLittleEndian(welcome.version, at + kWelcomeVersionAt);
  StoreLittleEndian(static_cast<std::uint8_t>(welcome.refusal), at + kWelcomeRefusalAt);
  StoreLittleEndian(welcome.version_min, at + kWelcomeVersionMinAt);
  StoreLittleEndian(welcome.version_max, at + kWelcomeVersionMaxAt);
}

bool DecodeLaneWelcome(std::span<const std::byte> bytes, LaneWelcome& welcome) {
  if (bytes.size() != kLaneWelcomeBytes) return false;
  const std::byte* const at = bytes.data();
  if (LoadLittleEndian<std::uint32_t>(at) != kWelcomeMagic) return false;
  if (!AllZero(bytes.subspan(kWelcomeZeroAt))) return false;
  LaneWelcome decoded;
  decoded.version = LoadLittleEndian<std::uint8_t>(at + kWelcomeVersionAt);
  decoded.refusal =
      static_cast<LaneRefusal>(LoadLittleEndian<std::uint8_t>(at + kWelcomeRefusalAt));
  decoded.version_min = LoadLittleEndian<std::uint8_t>(at + kWelcomeVersionMinAt);
  decoded.version_max = LoadLittleEndian<std::uint8_t>(at + kWelcomeVersionMaxAt);
  if (!RefusalIsKnown(decoded.refusal) || decoded.version_min > decoded.version_max) return false;
  if (!VersionFitsRefusal(decoded)) return false;
  welcome = decoded;
  return true;
}

}  // namespace phub::wire
