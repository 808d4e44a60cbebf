// The layout of a lane's shared memory: for each direction a ring of records, and a ring of bytes
// (the arena) for payload that is in ordinary memory.
//
//   +-----------------+-----------------+-------------------+-------------------+-------+-------+
//   | RingIndices [0] | RingIndices [1] | records [0]       | records [1]       |arena 0|arena 1|
//   +-----------------+-----------------+-------------------+-------------------+-------+-------+
//   [0] from client to daemon, [1] from daemon to client
//
// A record is a message: its header, the place of its payload, and the payload itself if it is
// short. Payloads in the arena are in the order of their records. A payload that is longer than the
// arena passes through it in pieces, so a record may be published before its bytes.
//
// Indices count up and never wrap. Each end keeps its own indices in private memory and publishes
// copies here. An end does not trust the peer's indices and records: it loads an index once and
// checks it, and copies a record to private memory once before it checks the record.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "common/transport/shared_words.h"
#include "common/wire/message.h"
#include "common/wire/shared_memory.h"

namespace phub::transport {

enum class PayloadPlace : std::uint64_t {
  kNone = 0,    // no payload
  kRecord = 1,  // in the record itself
  kArena = 2,   // the next payload_bytes of the arena
  kRegion = 3,  // at `address`, in a region that the sender may write
  kSlot = 4,    // in the receiver's staging slot header.slot
};

struct RingRecord {
  std::array<std::byte, wire::kHeaderBytes> header;
  std::uint64_t place;    // PayloadPlace
  std::uint64_t address;  // SharedAddress, for kRegion
  std::uint64_t unused[2];
  std::array<std::byte, wire::kInlineBytesMax> payload;  // for kRecord
};
static_assert(sizeof(RingRecord) == 192 && alignof(RingRecord) == 8, "a record is 3 cache lines");

// Two cache lines, because processors fetch neighbouring lines in pairs.
inline constexpr std::size_t kIndexAlignment = 128;

struct RingPosition {
  std::uint64_t records;
  std::uint64_t bytes;
  friend bool operator==(const RingPosition&, const RingPosition&) = default;
};

struct RingIndices {
  alignas(kIndexAlignment) RingPosition written;  // by the sender; records may be ahead of bytes
  alignas(kIndexAlignment) RingPosition read;     // by the receiver
  // An end sets its flag before it checks the ring for the last time and sleeps. The other end
  // clears the flag and rings the doorbell once.
  alignas(kIndexAlignment) std::uint32_t receiver_sleeps;
  std::uint32_t sender_sleeps;  // waits for room
  // A receiver that sleeps need not be rung before this many records are written (the low bits of
  // RingPosition::records). A sender that becomes idle rings earlier.
  std::uint32_t receiver_awaits;
  // Since wire::kKeepAliveVersion: the sender counts here, now and then, while it is alive.
  std::uint32_t sender_alive;
};
static_assert(sizeof(RingIndices) == 3 * kIndexAlignment);

inline constexpr std::size_t LaneMemoryBytes(std::uint32_t ring_records,
                                             std::uint32_t arena_bytes) {
  return 2 * (sizeof(RingIndices) + std::size_t{ring_records} * sizeof(RingRecord) + arena_bytes);
}

template <typename T>
void StoreShared(T& value, T next, std::memory_order order) {
  std::atomic_ref<T>(value).store(next, order);
}

// Going to sleep. One end publishes its position and then checks whether the other end sleeps. The
// other end sets its flag and then checks the position once more. All four accesses are
// sequentially consistent, so at least one end sees what the other has written.
inline RingPosition LoadPosition(const RingPosition& shared) {
  return {LoadShared(shared.records, std::memory_order_seq_cst),
          LoadShared(shared.bytes, std::memory_order_seq_cst)};
}
inline void SetSleeps(std::uint32_t& shared, bool sleeps) {
  StoreShared(shared, sleeps ? 1u : 0u, std::memory_order_seq_cst);
}
// Clears the flag. True once for each time that the other end went to sleep.
inline bool TakeSleeps(std::uint32_t& shared) {
  std::atomic_ref<std::uint32_t> sleeps(shared);
  return sleeps.load(std::memory_order_seq_cst) != 0 &&
         sleeps.exchange(0, std::memory_order_relaxed) != 0;
}

// One direction of a lane: addresses in this process of the lane's memory.
struct Ring {
  RingIndices* indices = nullptr;
  RingRecord* records = nullptr;
  std::byte* arena = nullptr;
  std::uint64_t record_count = 0;  // a power of two, like arena_bytes
  std::uint64_t arena_bytes = 0;

  RingRecord& record(std::uint64_t position) const {
    return records[position & (record_count - 1)];
  }
};

// `direction`: 0 from client to daemon, 1 back. `memory` holds LaneMemoryBytes and is page aligned.
inline Ring RingAt(std::byte* memory, unsigned direction, std::uint32_t ring_records,
                   std::uint32_t arena_bytes) {
  std::byte* const indices = memory + direction * sizeof(RingIndices);
  std::byte* const records =
      memory + 2 * sizeof(RingIndices) + direction * std::size_t{ring_records} * sizeof(RingRecord);
  std::byte* const arenas =
      memory + 2 * (sizeof(RingIndices) + std::size_t{ring_records} * sizeof(RingRecord));
  return {reinterpret_cast<RingIndices*>(indices), reinterpret_cast<RingRecord*>(records),
          arenas + direction * std::size_t{arena_bytes}, ring_records, arena_bytes};
}

// Copies the record; copies its payload only if record.place says that it has one.
inline void CopyRecord(const RingRecord& shared, RingRecord& record) {
  constexpr std::size_t kHeadWords = offsetof(RingRecord, payload) / sizeof(std::uint64_t);
  constexpr std::size_t kWords = sizeof(RingRecord) / sizeof(std::uint64_t);
  const auto* from = reinterpret_cast<const std::uint64_t*>(&shared);
  auto* to = reinterpret_cast<std::uint64_t*>(&record);
  CopyWords(from, to, kHeadWords);
  if (record.place == static_cast<std::uint64_t>(PayloadPlace::kRecord)) {
    CopyWords(from + kHeadWords, to + kHeadWords, kWords - kHeadWords);
  }
}

// Splits `count` bytes at `position` of a ring of `size` bytes into one or two contiguous parts.
// Calls put(offset in the ring, offset in the bytes, length) for each.
template <typename Put>
void ForArenaParts(std::uint64_t position, std::size_t count, std::uint64_t size, Put put) {
  const std::size_t offset = position & (size - 1);
  const std::size_t first = count < size - offset ? count : size - offset;
  put(offset, std::size_t{0}, first);
  if (first < count) put(std::size_t{0}, first, count - first);
}

}  // namespace phub::transport
