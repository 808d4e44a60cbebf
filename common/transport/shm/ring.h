// What lies in the shared memory of a lane: for each direction a ring of records, and a ring of
// bytes (the arena) for payload that lies in ordinary memory.
//
//   +-----------------+-----------------+-------------------+-------------------+-------+-------+
//   | RingIndices [0] | RingIndices [1] | records [0]       | records [1]       |arena 0|arena 1|
//   +-----------------+-----------------+-------------------+-------------------+-------+-------+
//   [0] from client to daemon, [1] from daemon to client
//
// A record is a message: its header, where its payload lies, and a short payload itself. The bytes
// of payloads in the arena lie there in the order of their records; a payload longer than the arena
// passes through it in pieces, so a record may be published before its bytes are.
//
// Indices count up and never wrap. Each end keeps its own in private memory and only publishes
// them: what stands here is the peer's word, to be loaded once and checked. A record is copied to
// private memory, once, before anything of it is believed.
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
  kNone = 0,    // there is none
  kRecord = 1,  // in the record itself
  kArena = 2,   // the next payload_bytes of the arena
  kRegion = 3,  // at `address`, in a region that the sender may write
  kSlot = 4,    // in the receiver's staging slot that the header names
};

struct RingRecord {
  std::array<std::byte, wire::kHeaderBytes> header;
  std::uint64_t place;    // PayloadPlace
  std::uint64_t address;  // SharedAddress, of kRegion
  std::uint64_t unused[2];
  std::array<std::byte, wire::kInlineBytesMax> payload;  // of kRecord
};
static_assert(sizeof(RingRecord) == 192 && alignof(RingRecord) == 8, "three cache lines");

// Two lines each: neighbouring lines are fetched in pairs.
inline constexpr std::size_t kIndexAlignment = 128;

struct RingPosition {
  std::uint64_t records;
  std::uint64_t bytes;
  friend bool operator==(const RingPosition&, const RingPosition&) = default;
};

struct RingIndices {
  alignas(kIndexAlignment) RingPosition written;  // by the sender; records may be ahead of bytes
  alignas(kIndexAlignment) RingPosition read;     // by the receiver
  // Set by whoever goes to sleep, before it looks for the last time; taken by the other end, which
  // then rings the doorbell, once.
  alignas(kIndexAlignment) std::uint32_t receiver_sleeps;
  std::uint32_t sender_sleeps;  // waits for room
  // Of a receiver that sleeps: it need not be rung before so many records are written (the low
  // bits of RingPosition::records). A sender that has nothing else to do rings all the same.
  std::uint32_t receiver_awaits;
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

// Going to sleep. One end publishes, then looks whether the other sleeps; the other says that it
// sleeps, then looks once more for what was published. All four sequentially consistent, so at
// least one of them sees the other's.
inline RingPosition LoadPosition(const RingPosition& shared) {
  return {LoadShared(shared.records, std::memory_order_seq_cst),
          LoadShared(shared.bytes, std::memory_order_seq_cst)};
}
inline void SetSleeps(std::uint32_t& shared, bool sleeps) {
  StoreShared(shared, sleeps ? 1u : 0u, std::memory_order_seq_cst);
}
// True once for each time that the other end went to sleep.
inline bool TakeSleeps(std::uint32_t& shared) {
  std::atomic_ref<std::uint32_t> sleeps(shared);
  return sleeps.load(std::memory_order_seq_cst) != 0 &&
         sleeps.exchange(0, std::memory_order_relaxed) != 0;
}

// One direction, as one end sees it. Plain addresses into the lane's memory.
struct Ring {
  RingIndices* indices = nullptr;
  RingRecord* records = nullptr;
  std::byte* arena = nullptr;
  std::uint64_t record_count = 0;  // powers of two
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

// The record, and its own payload only if it says that it has one.
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

// Calls put(offset, count) for the parts of `count` bytes of a ring of `size` from `position` on.
template <typename Put>
void ForArenaParts(std::uint64_t position, std::size_t count, std::uint64_t size, Put put) {
  const std::size_t offset = position & (size - 1);
  const std::size_t first = count < size - offset ? count : size - offset;
  put(offset, std::size_t{0}, first);
  if (first < count) put(std::size_t{0}, first, count - first);
}

}  // namespace phub::transport
