#include "common/wire/shared_memory.h"

#include <algorithm>
#include <bit>

#include "common/wire/little_endian.h"

namespace phub::wire {
namespace {

constexpr std::uint32_t kBatchMagic = 0x424C4850;  // "PHLB" in memory

// Offsets of SharedBatchRequest's fields; shared_memory.h lists them.
constexpr std::size_t kVersionMinAt = 4;
constexpr std::size_t kVersionMaxAt = 5;
constexpr std::size_t kZeroAt = 6;
constexpr std::size_t kBatchAt = 8;
constexpr std::size_t kRankAt = 12;
constexpr std::size_t kIncarnationAt = 16;
constexpr std::size_t kMembershipEpochAt = 24;
constexpr std::size_t kZero2At = 28;
constexpr std::size_t kNonceAt = 32;
constexpr std::size_t kZero3At = kNonceAt + kNonceBytes;
static_assert(kSharedBatchRequestBytes - kZero3At == 16);

// Offsets of SharedBatch's.
constexpr std::size_t kWorkerBytesAt = 0;
constexpr std::size_t kParametersBytesAt = 8;
constexpr std::size_t kWorkerRegionAt = 16;
constexpr std::size_t kParametersRegionAt = 20;
constexpr std::size_t kBatchZeroAt = 24;
static_assert(kSharedBatchBytes - kBatchZeroAt == 8);

bool RegionFits(std::uint64_t bytes, std::uint32_t region) {
  return bytes == 0 ? region == 0 : bytes <= kSharedRegionBytesMax && region < kSharedRegionsMax;
}

}  // namespace

void EncodeSharedBatchRequest(const SharedBatchRequest& request,
                              std::span<std::byte, kSharedBatchRequestBytes> bytes) {
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  std::byte* const at = bytes.data();
  StoreLittleEndian(kBatchMagic, at);
  StoreLittleEndian(request.version_min, at + kVersionMinAt);
  StoreLittleEndian(request.version_max, at + kVersionMaxAt);
  StoreLittleEndian(request.batch, at + kBatchAt);
  StoreLittleEndian(request.rank.value, at + kRankAt);
  StoreLittleEndian(request.incarnation.value, at + kIncarnationAt);
  StoreLittleEndian(request.membership_epoch.value, at + kMembershipEpochAt);
  std::copy(request.nonce.begin(), request.nonce.end(), at + kNonceAt);
}

bool DecodeSharedBatchRequest(std::span<const std::byte> bytes, SharedBatchRequest& request) {
  if (bytes.size() != kSharedBatchRequestBytes) return false;
  const std::byte* const at = bytes.data();
  if (LoadLittleEndian<std::uint32_t>(at) != kBatchMagic) return false;
  if (!AllZero(bytes.subspan(kZeroAt, kBatchAt - kZeroAt)) ||
      !AllZero(bytes.subspan(kZero2At, kNonceAt - kZero2At)) || !AllZero(bytes.subspan(kZero3At))) {
    return false;
  }
  SharedBatchRequest decoded;
  decoded.version_min = LoadLittleEndian<std::uint8_t>(at + kVersionMinAt);
  decoded.version_max = LoadLittleEndian<std::uint8_t>(at + kVersionMaxAt);
  if (decoded.version_min > decoded.version_max) return false;
  decoded.batch = LoadLittleEndian<std::uint32_t>(at + kBatchAt);
  decoded.rank.value = LoadLittleEndian<std::uint32_t>(at + kRankAt);
  decoded.incarnation.value = LoadLittleEndian<std::uint64_t>(at + kIncarnationAt);
  decoded.membership_epoch.value = LoadLittleEndian<std::uint32_t>(at + kMembershipEpochAt);
  std::copy_n(at + kNonceAt, kNonceBytes, decoded.nonce.begin());
  request = decoded;
  return true;
}

bool RingsFit(std::uint32_t ring_records, std::uint32_t arena_bytes) {
  return std::has_single_bit(ring_records) && ring_records >= kRingRecordsMin &&
         ring_records <= kRingRecordsMax && std::has_single_bit(arena_bytes) &&
         arena_bytes >= kArenaBytesMin && arena_bytes <= kArenaBytesMax;
}

void EncodeSharedLane(const SharedLane& lane, std::span<std::byte, kSharedLaneBytes> bytes) {
  StoreLittleEndian(lane.ring_records, bytes.data());
  StoreLittleEndian(lane.arena_bytes, bytes.data() + 4);
  StoreLittleEndian(lane.slot_count, bytes.data() + 8);
  StoreLittleEndian(lane.slot_bytes, bytes.data() + 12);
}

bool DecodeSharedLane(std::span<const std::byte> bytes, SharedLane& lane) {
  if (bytes.size() != kSharedLaneBytes) return false;
  SharedLane decoded;
  decoded.ring_records = LoadLittleEndian<std::uint32_t>(bytes.data());
  decoded.arena_bytes = LoadLittleEndian<std::uint32_t>(bytes.data() + 4);
  decoded.slot_count = LoadLittleEndian<std::uint32_t>(bytes.data() + 8);
  decoded.slot_bytes = LoadLittleEndian<std::uint32_t>(bytes.data() + 12);
  if (!RingsFit(decoded.ring_records, decoded.arena_bytes)) return false;
  if (decoded.slot_count > kSlotsPerLaneMax || decoded.slot_bytes > kChunkBytesMax) return false;
  if ((decoded.slot_count == 0) != (decoded.slot_bytes == 0)) return false;
  lane = decoded;
  return true;
}

void EncodeSharedBatch(const SharedBatch& batch, std::span<std::byte, kSharedBatchBytes> bytes) {
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  std::byte* const at = bytes.data();
  StoreLittleEndian(batch.worker_bytes, at + kWorkerBytesAt);
  StoreLittleEndian(batch.parameters_bytes, at + kParametersBytesAt);
  StoreLittleEndian(batch.worker_region, at + kWorkerRegionAt);
  StoreLittleEndian(batch.parameters_region, at + kParametersRegionAt);
}

bool DecodeSharedBatch(std::span<const std::byte> bytes, SharedBatch& batch) {
  if (bytes.size() != kSharedBatchBytes) return false;
  const std::byte* const at = bytes.data();
  if (!AllZero(bytes.subspan(kBatchZeroAt))) return false;
  SharedBatch decoded;
  decoded.worker_bytes = LoadLittleEndian<std::uint64_t>(at + kWorkerBytesAt);
  decoded.parameters_bytes = LoadLittleEndian<std::uint64_t>(at + kParametersBytesAt);
  decoded.worker_region = LoadLittleEndian<std::uint32_t>(at + kWorkerRegionAt);
  decoded.parameters_region = LoadLittleEndian<std::uint32_t>(at + kParametersRegionAt);
  if (!RegionFits(decoded.worker_bytes, decoded.worker_region) ||
      !RegionFits(decoded.parameters_bytes, decoded.parameters_region)) {
    return false;
  }
  batch = decoded;
  return true;
}

}  // namespace phub::wire
