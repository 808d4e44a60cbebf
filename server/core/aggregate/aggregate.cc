#include "server/core/aggregate/aggregate.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/simd/kernels.h"
#include "server/core/aggregate/screening.h"
#include "server/core/kernels_in_parts.h"
#include "server/core/on_core_loop.h"

namespace phub::server::aggregate {
namespace {

using wire::RoundOperation;

// Marks a gradient without payload as staged; the memory is not read.
const std::byte* NoPayload(const Chunk& chunk) { return chunk.accumulator; }

void Occupy(JobShard& shard, Rank rank, Chunk& chunk, SlotIndex slot, const std::byte* data) {
  Lane& lane = shard.lanes[rank.value];
  chunk.staged_data[rank.value] = data;
  chunk.staged_slot[rank.value] = slot;
  ++chunk.staged_count;
  if (slot == kNoSlot) {
    ++lane.staged_in_place;
    return;
  }
  PHUB_CHECK(lane.slot_chunk[slot.value] == ChunkIndex::Max(), "rank={} slot={}", rank.value,
             slot.value);
  lane.slot_chunk[slot.value] = chunk.index;
  ++lane.slots_used;
  shard.metrics.slots_used.Add();
  if (LaneFull(shard, rank)) ++shard.lanes_full;
}

void Vacate(JobShard& shard, Rank rank, Chunk& chunk) {
  Lane& lane = shard.lanes[rank.value];
  const SlotIndex slot = chunk.staged_slot[rank.value];
  chunk.staged_data[rank.value] = nullptr;
  chunk.staged_slot[rank.value] = kNoSlot;
  --chunk.staged_count;
  if (slot == kNoSlot) {
    --lane.staged_in_place;
    return;
  }
  PHUB_CHECK(lane.slot_chunk[slot.value] == chunk.index, "rank={} slot={} chunk={}", rank.value,
             slot.value, chunk.index.value);
  if (LaneFull(shard, rank)) --shard.lanes_full;
  lane.slot_chunk[slot.value] = ChunkIndex::Max();
  --lane.slots_used;
  shard.metrics.slots_used.Subtract();
}

// The accumulator, if ranks were folded, then the staged ranks [chunk.folded_count, end).
simd::Terms TermsUpTo(const Chunk& chunk, std::uint32_t end, TermList& scratch) {
  std::size_t count = 0;
  for (std::uint32_t rank = chunk.folded_count; rank < end; ++rank) {
    scratch[count++] = chunk.staged_data[rank];
  }
  return {chunk.folded_count > 0 ? chunk.accumulator : nullptr, {scratch.data(), count}};
}

// The root of kAssign or kMove as a rank of this rack; world_size or more if it is in another
// rack.
std::uint32_t RootHere(const JobShard& shard, const Chunk& chunk) {
  const std::uint32_t base = shard.config.rank_base;
  return chunk.root.value < base ? kRanksMax : chunk.root.value - base;
}

// Adds ranks [chunk.folded_count, end) to the accumulator. True if this is a reduction and its
// result is not finite.
bool AddToAccumulator(const JobShard& shard, Chunk& chunk, std::uint32_t end) {
  if (chunk.operation == RoundOperation::kLoad) return false;
  if (wire::HasRoot(chunk.operation)) {
    const std::uint32_t root = RootHere(shard, chunk);
    if (root >= chunk.folded_count && root < end) {
      std::memcpy(chunk.accumulator, chunk.staged_data[root], chunk.Bytes(chunk.payload_type));
    }
    return false;
  }
  TermList scratch;
  return FoldInParts(shard.long_work, chunk.gradient_type(), chunk.reduction(),
                     TermsUpTo(chunk, end, scratch), chunk.elements(), chunk.accumulator,
                     chunk.Encoded());
}

// The gradients of ranks [0, end): copies and those that are staged.
std::span<const std::byte* const> GradientsUpTo(const Chunk& chunk, std::uint32_t end,
                                                TermList& scratch) {
  for (std::uint32_t rank = 0; rank < end; ++rank) {
    scratch[rank] = rank < chunk.folded_count ? chunk.CopyOf(Rank{rank}) : chunk.staged_data[rank];
  }
  return {scratch.data(), end};
}

// Copies ranks [chunk.folded_count, end), or sums all ranks if these are the last. True if there is
// a sum, and it is not finite.
bool CopyOrSum(const JobShard& shard, Chunk& chunk, std::uint32_t end) {
  const ShardKey& key = *chunk.key;
  if (end == shard.config.world_size) {
    TermList scratch;
    return SumFixedInParts(shard.long_work, key.gradient_type, key.sum_block,
                           GradientsUpTo(chunk, end, scratch), chunk.element_count,
                           chunk.accumulator);
  }
  for (std::uint32_t rank = chunk.folded_count; rank < end; ++rank) {
    std::memcpy(chunk.CopyOf(Rank{rank}), chunk.staged_data[rank], chunk.Bytes(key.gradient_type));
  }
  return false;
}

// Moves ranks [chunk.folded_count, prefix_end) to the accumulator. REQUIRES: all are staged.
void FoldUpTo(JobShard& shard, Chunk& chunk, std::uint32_t prefix_end, FreedSlots& freed) {
  const bool in_fixed_point =
      chunk.key->sum_block != 0 && chunk.operation == RoundOperation::kReduce;
  // For min and max, the result of a prefix may be infinite although the final result is finite, so
  // each fold overwrites the flag.
  chunk.sum_non_finite = in_fixed_point ? CopyOrSum(shard, chunk, prefix_end)
                                        : AddToAccumulator(shard, chunk, prefix_end);
  if (chunk.sum_non_finite) NoteNonFinite(shard, chunk, prefix_end);
  for (std::uint32_t rank = chunk.folded_count; rank < prefix_end; ++rank) {
    const SlotIndex slot = chunk.staged_slot[rank];
    if (slot != kNoSlot) freed.items[freed.count++] = {Rank{rank}, chunk.index, slot};
    Vacate(shard, Rank{rank}, chunk);
  }
  chunk.folded_count = prefix_end;
}

}  // namespace

void Stage(JobShard& shard, Rank rank, Chunk& chunk, const transport::ReceivedMessage& message,
           TimeNs now) {
  PHUB_ON_CORE_LOOP();
  const wire::MessageHeader& header = message.header;
  PHUB_CHECK(!chunk.HasArrived(rank), "rank={} chunk={}", rank.value, chunk.index.value);
  if (chunk.arrived_count() == 0) {
    chunk.first_rank = rank;
    chunk.hyper_version = header.hyper_version;
    chunk.operation = header.operation;
    chunk.payload_type = header.type;
    chunk.root = header.root;
    chunk.round_since = now;
    chunk.skip_asked = false;
    if (chunk.is_pooled()) {
      chunk.hyper_version = HyperVersion{1};
      chunk.pool = {header.type, header.payload_bytes / numeric::ElementBytes(header.type),
                    header.pool};
    }
  }
  chunk.skip_asked |= (header.flags & wire::kFlagSkip) != 0;
  const std::byte* const data = message.payload != nullptr ? message.payload : NoPayload(chunk);
  Occupy(shard, rank, chunk, header.slot, data);
}

bool LaneFull(const JobShard& shard, Rank rank) {
  return shard.lanes[rank.value].slots_used == shard.config.slots_per_lane;
}

bool HeldByFullLane(const JobShard& shard, const Chunk& chunk) {
  if (shard.lanes_full == 0) return false;
  for (std::uint32_t rank = chunk.folded_count; rank < shard.config.world_size; ++rank) {
    if (chunk.staged_slot[rank] != kNoSlot && LaneFull(shard, Rank{rank})) return true;
  }
  return false;
}

bool HoldsWholeRound(const JobShard& shard, Rank rank) {
  const std::vector<ChunkIndex>& slots = shard.lanes[rank.value].slot_chunk;
  return std::any_of(slots.begin(), slots.end(), [&](ChunkIndex held) {
    return held != ChunkIndex::Max() &&
           shard.chunks()[held.value]->arrived_count() == shard.config.world_size;
  });
}

void Fold(JobShard& shard, Chunk& chunk, FreedSlots& freed) {
  PHUB_ON_CORE_LOOP();
  freed.count = 0;
  std::uint32_t prefix_end = chunk.folded_count;
  while (prefix_end < shard.config.world_size && chunk.staged_data[prefix_end] != nullptr) {
    ++prefix_end;
  }
  // A whole round is finished instead of folded; it may be waiting for its turn.
  if (prefix_end == chunk.folded_count || prefix_end == shard.config.world_size) return;
  FoldUpTo(shard, chunk, prefix_end, freed);
}

bool FoldAll(JobShard& shard, Chunk& chunk, FreedSlots& freed) {
  PHUB_ON_CORE_LOOP();
  PHUB_CHECK(chunk.arrived_count() == shard.config.world_size, "chunk={}", chunk.index.value);
  freed.count = 0;
  if (chunk.folded_count < shard.config.world_size) {
    FoldUpTo(shard, chunk, shard.config.world_size, freed);
  }
  if (chunk.operation == RoundOperation::kLoad) return false;
  return !wire::HasRoot(chunk.operation) || RootHere(shard, chunk) < shard.config.world_size;
}

simd::Terms GatherTerms(const JobShard& shard, const Chunk& chunk, TermList& scratch) {
  PHUB_ON_CORE_LOOP();
  PHUB_CHECK(chunk.arrived_count() == shard.config.world_size, "chunk={} arrived={}",
             chunk.index.value, chunk.arrived_count());
  switch (chunk.operation) {
    case RoundOperation::kReduce:
    case RoundOperation::kPool: return TermsUpTo(chunk, shard.config.world_size, scratch);
    case RoundOperation::kLoad: return {};
    case RoundOperation::kAssign:
    case RoundOperation::kMove: break;
  }
  const std::uint32_t root = chunk.root.value;
  scratch[0] = root < chunk.folded_count ? chunk.accumulator : chunk.staged_data[root];
  return {nullptr, {scratch.data(), 1}};
}

std::span<const std::byte* const> GatherGradients(const JobShard& shard, const Chunk& chunk,
                                                  TermList& scratch) {
  PHUB_ON_CORE_LOOP();
  PHUB_CHECK(chunk.arrived_count() == shard.config.world_size, "chunk={} arrived={}",
             chunk.index.value, chunk.arrived_count());
  return GradientsUpTo(chunk, shard.config.world_size, scratch);
}

void Finish(JobShard& shard, Chunk& chunk) {
  PHUB_ON_CORE_LOOP();
  for (std::uint32_t rank = chunk.folded_count; rank < shard.config.world_size; ++rank) {
    Vacate(shard, Rank{rank}, chunk);
  }
  PHUB_CHECK(chunk.staged_count == 0, "chunk={}", chunk.index.value);
  chunk.folded_count = 0;
  chunk.folded_non_finite = false;
}

std::size_t DiscardStaged(JobShard& shard, Rank rank) {
  PHUB_ON_CORE_LOOP();
  Lane& lane = shard.lanes[rank.value];
  std::size_t discarded = 0;
  for (const ChunkIndex held : lane.slot_chunk) {
    if (held == ChunkIndex::Max()) continue;
    Vacate(shard, rank, *shard.chunks()[held.value]);
    ++discarded;
  }
  for (std::uint32_t i = 0; i < shard.chunk_count && lane.staged_in_place > 0; ++i) {
    Chunk& chunk = *shard.chunks()[i];
    if (chunk.staged_data[rank.value] == nullptr) continue;
    Vacate(shard, rank, chunk);
    ++discarded;
  }
  PHUB_CHECK(lane.slots_used == 0 && lane.staged_in_place == 0, "rank={} slots_used={} in_place={}",
             rank.value, lane.slots_used, lane.staged_in_place);
  return discarded;
}

}  // namespace phub::server::aggregate
