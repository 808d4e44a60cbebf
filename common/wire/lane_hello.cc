#include "common/wire/lane_hello.h"

#include <algorithm>

#include "common/wire/lane_request.h"
#include "common/wire/little_endian.h"

namespace phub::wire {
namespace {

constexpr std::uint32_t kWelcomeMagic = 0x574C4850;  // "PHLW" in memory

// Offsets of LaneWelcome's fields.
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
    case LaneRefusal::kEncryption: return true;
  }
  return false;
}

// Accepted: the chosen version is within the daemon's range. Refused: the version is 0.
bool VersionFitsRefusal(const LaneWelcome& welcome) {
  if (welcome.refusal != LaneRefusal::kNone) return welcome.version == 0;
  return welcome.version != 0 && welcome.version >= welcome.version_min &&
         welcome.version <= welcome.version_max;
}

}  // namespace

const char* ToString(LaneRefusal refusal) {
  switch (refusal) {
    case LaneRefusal::kNone: return "none";
    case LaneRefusal::kVersion: return "version";
    case LaneRefusal::kNonce: return "nonce";
    case LaneRefusal::kJob: return "job";
    case LaneRefusal::kBusy: return "busy";
    case LaneRefusal::kCapacity: return "capacity";
    case LaneRefusal::kEncryption: return "encryption";
  }
  return "unknown";
}

void EncodeHello(std::uint32_t magic, const LaneHello& hello,
                 std::span<std::byte, kLaneHelloBytes> bytes) {
  EncodeLaneRequest(magic,
                    {.version_min = hello.version_min,
                     .version_max = hello.version_max,
                     .subject = hello.core.value,
                     .rank = hello.rank,
                     .incarnation = hello.incarnation,
                     .membership_epoch = hello.membership_epoch,
                     .nonce = hello.nonce},
                    bytes);
}

bool DecodeHello(std::uint32_t magic, std::span<const std::byte> bytes, LaneHello& hello) {
  LaneRequest decoded;
  if (!DecodeLaneRequest(magic, bytes, decoded)) return false;
  hello = {.version_min = decoded.version_min,
           .version_max = decoded.version_max,
           .core = CoreIndex{decoded.subject},
           .rank = decoded.rank,
           .incarnation = decoded.incarnation,
           .membership_epoch = decoded.membership_epoch,
           .nonce = decoded.nonce};
  return true;
}

void EncodeLaneHello(const LaneHello& hello, std::span<std::byte, kLaneHelloBytes> bytes) {
  EncodeHello(kLaneHelloMagic, hello, bytes);
}

bool DecodeLaneHello(std::span<const std::byte> bytes, LaneHello& hello) {
  return DecodeHello(kLaneHelloMagic, bytes, hello);
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
