#include "common/wire/lane_request.h"

#include <algorithm>

#include "common/wire/little_endian.h"

namespace phub::wire {
namespace {

constexpr std::size_t kVersionMinAt = 4;
constexpr std::size_t kVersionMaxAt = 5;
constexpr std::size_t kZeroAt = 6;
constexpr std::size_t kSubjectAt = 8;
constexpr std::size_t kRankAt = 12;
constexpr std::size_t kIncarnationAt = 16;
constexpr std::size_t kMembershipEpochAt = 24;
constexpr std::size_t kZero2At = 28;
constexpr std::size_t kNonceAt = 32;
constexpr std::size_t kZero3At = kNonceAt + kNonceBytes;
static_assert(kLaneHelloBytes - kZero3At == 16);

}  // namespace

void EncodeLaneRequest(std::uint32_t magic, const LaneRequest& request,
                       std::span<std::byte, kLaneHelloBytes> bytes) {
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  std::byte* const at = bytes.data();
  StoreLittleEndian(magic, at);
  StoreLittleEndian(request.version_min, at + kVersionMinAt);
  StoreLittleEndian(request.version_max, at + kVersionMaxAt);
  StoreLittleEndian(request.subject, at + kSubjectAt);
  StoreLittleEndian(request.rank.value, at + kRankAt);
  StoreLittleEndian(request.incarnation.value, at + kIncarnationAt);
  StoreLittleEndian(request.membership_epoch.value, at + kMembershipEpochAt);
  std::copy(request.nonce.begin(), request.nonce.end(), at + kNonceAt);
}

bool DecodeLaneRequest(std::uint32_t magic, std::span<const std::byte> bytes,
                       LaneRequest& request) {
  if (bytes.size() != kLaneHelloBytes) return false;
  const std::byte* const at = bytes.data();
  if (LoadLittleEndian<std::uint32_t>(at) != magic) return false;
  if (!AllZero(bytes.subspan(kZeroAt, kSubjectAt - kZeroAt)) ||
      !AllZero(bytes.subspan(kZero2At, kNonceAt - kZero2At)) || !AllZero(bytes.subspan(kZero3At))) {
    return false;
  }
  LaneRequest decoded;
  decoded.version_min = LoadLittleEndian<std::uint8_t>(at + kVersionMinAt);
  decoded.version_max = LoadLittleEndian<std::uint8_t>(at + kVersionMaxAt);
  if (decoded.version_min > decoded.version_max) return false;
  decoded.subject = LoadLittleEndian<std::uint32_t>(at + kSubjectAt);
  decoded.rank.value = LoadLittleEndian<std::uint32_t>(at + kRankAt);
  decoded.incarnation.value = LoadLittleEndian<std::uint64_t>(at + kIncarnationAt);
  decoded.membership_epoch.value = LoadLittleEndian<std::uint32_t>(at + kMembershipEpochAt);
  std::copy_n(at + kNonceAt, kNonceBytes, decoded.nonce.begin());
  request = decoded;
  return true;
}

}  // namespace phub::wire
