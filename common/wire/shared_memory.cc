#include "common/wire/shared_memory.h"

#include <algorithm>
#include <bit>

#include "common/wire/lane_request.h"
#include "common/wire/little_endian.h"

namespace phub::wire {
namespace {

constexpr std::uint32_t kBatchMagic = 0x424C4850;  // "PHLB" in memory

// Offsets of SharedBatch's fields.
constexpr std::size_t kWorkerBytesAt = 0;
constexpr std::size_t kParametersBytesAt = 8;
constexpr std::size_t kWorkerRegionAt = 16;
constexpr std::size_t kParametersRegionAt = 20;
constexpr std::size_t kBatchZeroAt = 24;
static_assert(kSharedBatchBytes - kBatchZeroAt == 8);

bool RegionFits(std::uint64_t bytes, std::uint32_t region) {
  constexpr std::uint32_t kEnd = kGroupRegionsFirst + kGroupRegionsMax;
  return bytes == 0 ? region == 0 : bytes <= kSharedRegionBytesMax && region < kEnd;
}

}  // namespace

void EncodeSharedBatchRequest(const SharedBatchRequest& request,
                              std::span<std::byte, kSharedBatchRequestBytes> bytes) {
  EncodeLaneRequest(kBatchMagic,
                    {.version_min = request.version_min,
                     .version_max = request.version_max,
                     .subject = request.batch,
                     .rank = request.rank,
                     .incarnation = request.incarnation,
                     .membership_epoch = request.membership_epoch,
                     .nonce = request.nonce},
                    bytes);
}

bool DecodeSharedBatchRequest(std::span<const std::byte> bytes, SharedBatchRequest& request) {
  LaneRequest decoded;
  if (!DecodeLaneRequest(kBatchMagic, bytes, decoded)) return false;
  request = {.version_min = decoded.version_min,
             .version_max = decoded.version_max,
             .batch = decoded.subject,
             .rank = decoded.rank,
             .incarnation = decoded.incarnation,
             .membership_epoch = decoded.membership_epoch,
             .nonce = decoded.nonce};
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
