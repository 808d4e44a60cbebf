// Identifiers of the data plane, each a type of its own: the compiler rejects a rank where a slot
// is expected. The wire carries full-width values; out-of-range values are rejected, never masked.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>

namespace phub {

template <typename Tag, typename Rep>
struct Id {
  Rep value{};
  friend constexpr auto operator<=>(const Id&, const Id&) = default;
  static constexpr Id Max() { return Id{std::numeric_limits<Rep>::max()}; }
};

// One run of a job name: random, 64 bits, unique for the daemon's lifetime. It identifies the job
// on the wire.
using Incarnation = Id<struct IncarnationTag, std::uint64_t>;
// Generation of a job's membership. Not an epoch in the sense of a pass over the training data.
using MembershipEpoch = Id<struct MembershipEpochTag, std::uint32_t>;
// 0-based index of a worker in its job.
using Rank = Id<struct RankTag, std::uint32_t>;
// 0-based index of a key in its job, in the order in which keys are added.
using KeyIndex = Id<struct KeyIndexTag, std::uint32_t>;
// 0-based index of a chunk among the job's chunks on one core loop (its shard), ordered by key and
// then by offset. Client and server derive the same numbering from the placement. A lane connects
// to one core loop, so this index identifies a chunk on a lane.
using ChunkIndex = Id<struct ChunkIndexTag, std::uint32_t>;
// Training iteration of one key: 0 is the state before any round, 1 the state after the first.
using Iteration = Id<struct IterationTag, std::uint64_t>;
// Version of one key's hyper-parameters; the first is 1.
using HyperVersion = Id<struct HyperVersionTag, std::uint32_t>;
// 0-based index of a staging slot within one lane.
using SlotIndex = Id<struct SlotIndexTag, std::uint32_t>;
// 0-based index of a core loop within one daemon.
using CoreIndex = Id<struct CoreIndexTag, std::uint32_t>;

inline constexpr SlotIndex kNoSlot = SlotIndex::Max();

// An address in memory that both ends of a connection map (common/transport/shm). 0: none.
using SharedAddress = Id<struct SharedAddressTag, std::uint64_t>;

// Limits of every number that a peer can send. They are checked when a message is decoded.
inline constexpr std::uint32_t kRanksMax = 1024;         // workers of one job
inline constexpr std::uint32_t kSlotsPerLaneMax = 4096;  // staging slots of one lane
inline constexpr std::uint32_t kChunkBytesMin = 256;     // small chunks are only for tests
inline constexpr std::uint32_t kChunkBytesMax = 1u << 22;
inline constexpr std::uint32_t kChunksPerShardMax = 1u << 20;
inline constexpr std::uint32_t kKeysPerJobMax = 1u << 16;

}  // namespace phub
