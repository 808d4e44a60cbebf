#include "server/aggregate/aggregate.h"

#include <cstring>

#include "common/base/check.h"
#include "common/simd/kernels.h"

namespace phub::server::aggregate {
namespace {

using wire::RoundOperation;

const float* SlotData(const JobShard& shard, Rank rank, SlotIndex slot) {
  return reinterpret_cast<const float*>(shard.lanes[rank.value].landing[slot.value].data);
}

void OccupySlot(JobShard& shard, Rank rank, const Chunk& chunk, SlotIndex slot) {
  Lane& lane = shard.lanes[rank.value];
  PHUB_CHECK(lane.slot_chunk[slot.value] == ChunkIndex::Max(), "rank={} slot={}", rank.value,
             slot.value);
  lane.slot_chunk[slot.value] = chunk.index;
  ++lane.slots_used;
  if (LaneFull(shard, rank)) ++shard.lanes_full;
}

void FreeSlot(JobShard& shard, Rank rank, Chunk& chunk) {
  Lane& lane = shard.lanes[rank.value];
  const SlotIndex slot = chunk.staged_slot[rank.value];
  PHUB_CHECK(lane.slot_chunk[slot.value] == chunk.index, "rank={} slot={} chunk={}", rank.value,
             slot.value, chunk.index.value);
  if (LaneFull(shard, rank)) --shard.lanes_full;
  lane.slot_chunk[slot.value] = ChunkIndex::Max();
  --lane.slots_used;
  chunk.staged_slot[rank.value] = kNoSlot;
  --chunk.staged_count;
}

// Sums ranks [chunk.folded_count, prefix_end) into the accumulator.
void AddToAccumulator(JobShard& shard, Chunk& chunk, std::uint32_t prefix_end) {
  if (chunk.operation == RoundOperation::kAssign) {
    const std::uint32_t root = chunk.root.value;
    if (root >= chunk.folded_count && root < prefix_end) {
      std::memcpy(chunk.accumulator, SlotData(shard, chunk.root, chunk.staged_slot[root]),
                  chunk.bytes());
    }
    return;
  }
  Terms terms;
  std::size_t count = 0;
  if (chunk.folded_count > 0) terms[count++] = chunk.accumulator;
  for (std::uint32_t rank = chunk.folded_count; rank < prefix_end; ++rank) {
    terms[count++] = SlotData(shard, Rank{rank}, chunk.staged_slot[rank]);
  }
  simd::Sum({terms.data(), count}, chunk.element_count, chunk.accumulator);
}

}  // namespace

void Stage(JobShard& shard, Rank rank, Chunk& chunk, const wire::MessageHeader& header,
           TimeNs now) {
  PHUB_CHECK(!chunk.HasArrived(rank), "rank={} chunk={}", rank.value, chunk.index.value);
  if (chunk.arrived_count() == 0) {
    chunk.first_rank = rank;
    chunk.record = header.record;
    chunk.operation = header.operation;
    chunk.root = header.root;
    chunk.round_since = now;
  }
  chunk.staged_slot[rank.value] = header.slot;
  ++chunk.staged_count;
  OccupySlot(shard, rank, chunk, header.slot);
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

void Fold(JobShard& shard, Chunk& chunk, FreedSlots& freed) {
  freed.count = 0;
  std::uint32_t prefix_end = chunk.folded_count;
  while (prefix_end < shard.config.world_size && chunk.staged_slot[prefix_end] != kNoSlot) {
    ++prefix_end;
  }
  PHUB_CHECK(prefix_end < shard.config.world_size, "a whole round is finished, not folded");
  if (prefix_end == chunk.folded_count) return;
  AddToAccumulator(shard, chunk, prefix_end);
  for (std::uint32_t rank = chunk.folded_count; rank < prefix_end; ++rank) {
    freed.items[freed.count++] = {Rank{rank}, chunk.index, chunk.staged_slot[rank]};
    FreeSlot(shard, Rank{rank}, chunk);
  }
  chunk.folded_count = prefix_end;
}

std::span<const float* const> GatherTerms(const JobShard& shard, const Chunk& chunk, Terms& terms) {
  PHUB_CHECK(chunk.arrived_count() == shard.config.world_size, "chunk={} arrived={}",
             chunk.index.value, chunk.arrived_count());
  if (chunk.operation == RoundOperation::kAssign) {
    const std::uint32_t root = chunk.root.value;
    terms[0] = root < chunk.folded_count ? chunk.accumulator
                                         : SlotData(shard, chunk.root, chunk.staged_slot[root]);
    return {terms.data(), 1};
  }
  std::size_t count = 0;
  if (chunk.folded_count > 0) terms[count++] = chunk.accumulator;
  for (std::uint32_t rank = chunk.folded_count; rank < shard.config.world_size; ++rank) {
    terms[count++] = SlotData(shard, Rank{rank}, chunk.staged_slot[rank]);
  }
  return {terms.data(), count};
}

void Finish(JobShard& shard, Chunk& chunk) {
  for (std::uint32_t rank = chunk.folded_count; rank < shard.config.world_size; ++rank) {
    FreeSlot(shard, Rank{rank}, chunk);
  }
  PHUB_CHECK(chunk.staged_count == 0, "chunk={}", chunk.index.value);
  chunk.folded_count = 0;
}

std::size_t DiscardStaged(JobShard& shard, Rank rank) {
  Lane& lane = shard.lanes[rank.value];
  std::size_t discarded = 0;
  for (const ChunkIndex held : lane.slot_chunk) {
    if (held == ChunkIndex::Max()) continue;
    FreeSlot(shard, rank, *shard.chunks()[held.value]);
    ++discarded;
  }
  PHUB_CHECK(lane.slots_used == 0, "rank={} slots_used={}", rank.value, lane.slots_used);
  return discarded;
}

}  // namespace phub::server::aggregate
