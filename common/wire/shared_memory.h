// Messages on a daemon's Unix socket that set up shared memory, one packet each. Little-endian;
// fixed sizes; unused bytes are zero.
//
// A client requests a lane with a LaneHello (lane_hello.h), or the memory of a batch of keys with:
//   SharedBatchRequest (64 bytes): magic u32 "PHLB", version_min u8, version_max u8, zero u16,
//                                  batch u32, rank u32, incarnation u64, membership_epoch u32,
//                                  zero u32, nonce 16 bytes, zero 16 bytes
// The daemon refuses with a LaneWelcome (16 bytes). It accepts with a packet that holds a
// LaneWelcome, one of the following, and the descriptors:
//   SharedLane  (16 bytes): ring_records u32, arena_bytes u32, slot_count u32, slot_bytes u32
//                           descriptors: rings, staging (if slot_count > 0), doorbell
//   SharedBatch (32 bytes): worker_bytes u64, parameters_bytes u64, worker_region u32,
//                           parameters_region u32, zero 8 bytes
//                           descriptors: worker's region, parameters; each only if its bytes > 0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/ids.h"
#include "common/wire/lane_hello.h"

namespace phub::wire {

inline constexpr std::size_t kSharedBatchRequestBytes = kLaneHelloBytes;
inline constexpr std::size_t kSharedLaneBytes = 16;
inline constexpr std::size_t kSharedBatchBytes = 32;

// Limits of a lane's rings. Both sizes are powers of two.
inline constexpr std::uint32_t kRingRecordsMin = 4;
inline constexpr std::uint32_t kRingRecordsMax = 4096;
inline constexpr std::uint32_t kArenaBytesMin = 4096;
inline constexpr std::uint32_t kArenaBytesMax = 1u << 24;

// Regions that both ends of a rank's lanes map. An index, equal at both ends, identifies a region.
inline constexpr std::uint32_t kSharedRegionsMax = 4096;
// Those of groups of ranks have the indices from kSharedRegionsMax on. Workers choose them, since
// groups are added and removed in any order.
inline constexpr std::uint32_t kGroupRegionsFirst = kSharedRegionsMax;
inline constexpr std::uint32_t kGroupRegionsMax = 1024;
inline constexpr std::uint64_t kSharedRegionBytesMax = std::uint64_t{1} << 48;

inline constexpr std::uint32_t kGroupBatchesFirst = std::uint32_t{1} << 31;

struct SharedBatchRequest {
  std::uint8_t version_min = 0;
  std::uint8_t version_max = 0;
  // Control's number of the batch of keys, or kGroupBatchesFirst and the index of the region that a
  // rank shares for a batch of a group.
  std::uint32_t batch = 0;
  Rank rank{};
  Incarnation incarnation{};
  MembershipEpoch membership_epoch{};
  Nonce nonce{};
  friend bool operator==(const SharedBatchRequest&, const SharedBatchRequest&) = default;
};

struct SharedLane {
  std::uint32_t ring_records = 0;  // per direction
  std::uint32_t arena_bytes = 0;   // per direction
  std::uint32_t slot_count = 0;
  std::uint32_t slot_bytes = 0;
  friend bool operator==(const SharedLane&, const SharedLane&) = default;
};

struct SharedBatch {
  std::uint64_t worker_bytes = 0;      // 0: the worker has no region
  std::uint64_t parameters_bytes = 0;  // 0: no parameters to map
  std::uint32_t worker_region = 0;
  std::uint32_t parameters_region = 0;
  friend bool operator==(const SharedBatch&, const SharedBatch&) = default;
};

void EncodeSharedBatchRequest(const SharedBatchRequest& request,
                              std::span<std::byte, kSharedBatchRequestBytes> bytes);
// False unless size, magic, zero fields and version_min <= version_max are valid.
[[nodiscard]] bool DecodeSharedBatchRequest(std::span<const std::byte> bytes,
                                            SharedBatchRequest& request);

// Whether both are powers of two within the limits above.
bool RingsFit(std::uint32_t ring_records, std::uint32_t arena_bytes);
void EncodeSharedLane(const SharedLane& lane, std::span<std::byte, kSharedLaneBytes> bytes);
// False unless the rings fit and slot_count and slot_bytes are within kSlotsPerLaneMax and
// kChunkBytesMax and are both 0 or both positive.
[[nodiscard]] bool DecodeSharedLane(std::span<const std::byte> bytes, SharedLane& lane);

void EncodeSharedBatch(const SharedBatch& batch, std::span<std::byte, kSharedBatchBytes> bytes);
// False unless sizes and indices are within their limits. The index of an empty region must be 0.
[[nodiscard]] bool DecodeSharedBatch(std::span<const std::byte> bytes, SharedBatch& batch);

}  // namespace phub::wire
