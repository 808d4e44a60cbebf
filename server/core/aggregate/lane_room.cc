#include "server/core/aggregate/lane_room.h"

#include "common/base/check.h"

namespace phub::server::aggregate {
namespace {

bool AllUsed(const JobShard& shard, std::uint32_t used) {
  return used == shard.config.slots_per_lane;
}

// Slots with gradients of lower classes.
std::uint32_t YieldingSlots(const JobShard& shard, const Lane& lane) {
  return shard.top_level == 0 ? 0 : lane.slots_used - lane.slots_at[shard.top_level];
}

bool TooManyYield(const JobShard& shard, std::uint32_t yielding) {
  return yielding >= YieldingSlotsMax(shard.config.slots_per_lane);
}

// Every lane's, since the shard has another highest class.
void CountFullLanes(JobShard& shard) {
  shard.lanes_full = 0;
  for (std::uint32_t rank = 0; rank < shard.config.world_size; ++rank)
    shard.lanes_full += LaneFull(shard, Rank{rank});
}

}  // namespace

void TakeSlot(JobShard& shard, Rank rank, const Chunk& chunk, SlotIndex slot) {
  Lane& lane = shard.lanes[rank.value];
  PHUB_CHECK(lane.slot_chunk[slot.value] == ChunkIndex::Max(), "rank={} slot={}", rank.value,
             slot.value);
  const bool was_full = LaneFull(shard, rank);
  lane.slot_chunk[slot.value] = chunk.index;
  ++lane.slots_used;
  ++lane.slots_at[chunk.key->level];
  shard.metrics.slots_used.Add();
  if (!was_full && LaneFull(shard, rank)) ++shard.lanes_full;
}

void ReturnSlot(JobShard& shard, Rank rank, const Chunk& chunk, SlotIndex slot) {
  Lane& lane = shard.lanes[rank.value];
  PHUB_CHECK(lane.slot_chunk[slot.value] == chunk.index, "rank={} slot={} chunk={}", rank.value,
             slot.value, chunk.index.value);
  const bool was_full = LaneFull(shard, rank);
  lane.slot_chunk[slot.value] = ChunkIndex::Max();
  --lane.slots_used;
  --lane.slots_at[chunk.key->level];
  shard.metrics.slots_used.Subtract();
  if (was_full && !LaneFull(shard, rank)) --shard.lanes_full;
}

bool LaneFull(const JobShard& shard, Rank rank) {
  const Lane& lane = shard.lanes[rank.value];
  return AllUsed(shard, lane.slots_used) || TooManyYield(shard, YieldingSlots(shard, lane));
}

bool FullFor(const JobShard& shard, Rank rank, const Chunk& chunk) {
  const Lane& lane = shard.lanes[rank.value];
  if (AllUsed(shard, lane.slots_used)) return true;
  return chunk.key->level < shard.top_level && TooManyYield(shard, YieldingSlots(shard, lane));
}

bool HeldByFullLane(const JobShard& shard, const Chunk& chunk) {
  if (shard.lanes_full == 0) return false;
  for (std::uint32_t member = chunk.folded_count; member < chunk.member_count; ++member) {
    if (chunk.staged_slot[member] != kNoSlot && FullFor(shard, chunk.RankOf(member), chunk))
      return true;
  }
  return false;
}

bool FreesItself(const JobShard& shard, Rank rank) {
  const Lane& lane = shard.lanes[rank.value];
  std::uint32_t used = lane.slots_used;
  std::uint32_t yielding = YieldingSlots(shard, lane);
  for (const ChunkIndex held : lane.slot_chunk) {
    if (held == ChunkIndex::Max() || !shard.chunks()[held.value]->IsWhole()) continue;
    --used;
    yielding -= shard.chunks()[held.value]->key->level < shard.top_level;
  }
  return !AllUsed(shard, used) && !TooManyYield(shard, yielding);
}

bool NoteChunkAdded(JobShard& shard, std::size_t level) {
  ++shard.chunks_at[level];
  if (level <= shard.top_level) return false;
  shard.top_level = static_cast<std::uint8_t>(level);
  CountFullLanes(shard);
  return shard.lanes_full > 0;
}

void NoteChunkRemoved(JobShard& shard, std::size_t level) {
  --shard.chunks_at[level];
  const std::uint8_t before = shard.top_level;
  while (shard.top_level > 0 && shard.chunks_at[shard.top_level] == 0) --shard.top_level;
  if (shard.top_level != before) CountFullLanes(shard);
}

}  // namespace phub::server::aggregate
