// Names of things on the data plane, as distinct types: the compiler refuses a rank where a slot
// is meant. Values are full width on the wire too, and refused when out of range, never masked.
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

// One run of a job name: random, 64 bit, unique over the daemon's life. Names the job on the wire.
using Incarnation = Id<struct IncarnationTag, std::uint64_t>;
// Configuration generation of a job's membership. Never a pass over the data.
using MembershipEpoch = Id<struct MembershipEpochTag, std::uint32_t>;
// 0-based index of a worker in its job.
using Rank = Id<struct RankTag, std::uint32_t>;
// 0-based index of a key in its job, in the order in which keys were added.
using KeyIndex = Id<struct KeyIndexTag, std::uint32_t>;
// 0-based index of a chunk among the job's chunks that one core loop owns (its shard), in the
// order of keys and, within a key, of offsets. Client and server derive the same numbering from
// the placement; a lane leads to one core loop, so this index names a chunk on a lane.
using ChunkIndex = Id<struct ChunkIndexTag, std::uint32_t>;
// Training iteration of one key: 0 is the state before any round, the first round makes 1.
using Iteration = Id<struct IterationTag, std::uint64_t>;
// Version of one key's hyper-parameters; the first is 1.
using HyperVersion = Id<struct HyperVersionTag, std::uint32_t>;
// 0-based index of a staging slot within one lane.
using SlotIndex = Id<struct SlotIndexTag, std::uint32_t>;
// 0-based index of a core loop within one daemon.
using CoreIndex = Id<struct CoreIndexTag, std::uint32_t>;

inline constexpr SlotIndex kNoSlot = SlotIndex::Max();

// A place in memory that both ends of a connection map (common/transport/shm). 0: none.
using SharedAddress = Id<struct SharedAddressTag, std::uint64_t>;

// Limits. Everything a peer can name is bounded; the bounds are checked where bytes come in.
inline constexpr std::uint32_t kRanksMax = 1024;         // workers of one job
inline constexpr std::uint32_t kSlotsPerLaneMax = 4096;  // staging slots of one lane
inline constexpr std::uint32_t kChunkBytesMin = 256;     // small ones exist for tests
inline constexpr std::uint32_t kChunkBytesMax = 1u << 22;
inline constexpr std::uint32_t kChunksPerShardMax = 1u << 20;
inline constexpr std::uint32_t kKeysPerJobMax = 1u << 16;

}  // namespace phub
