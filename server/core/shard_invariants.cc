#include "server/core/shard_invariants.h"

#include <bit>

#include "common/base/check.h"
#include "server/core/aggregate/aggregate.h"
#include "server/core/shard_sums.h"

namespace phub::server {
namespace {

std::uint32_t CountBits(const std::uint64_t* bits, std::uint32_t chunk_count) {
  std::uint32_t count = 0;
  for (std::uint32_t word = 0; word < (chunk_count + 63) / 64; ++word) {
    count += static_cast<std::uint32_t>(std::popcount(bits[word]));
  }
  return count;
}

using CountsOfLevels = std::array<std::uint32_t, kPriorityLevels>;

CountsOfLevels PendingAt(const JobShard& shard, const Lane& lane) {
  CountsOfLevels counts{};
  for (std::uint32_t i = 0; i < shard.chunk_count; ++i) {
    for (const std::uint64_t* const bits : {lane.pending_reply, lane.pending_previous})
      counts[shard.chunks()[i]->key->level] += (bits[i / 64] >> (i % 64) & 1) != 0;
  }
  return counts;
}

CountsOfLevels ChunksAt(const JobShard& shard) {
  CountsOfLevels counts{};
  for (std::uint32_t i = 0; i < shard.chunk_count; ++i) {
    const Chunk& chunk = *shard.chunks()[i];
    counts[chunk.key->level] += !shard.IsHole(chunk);
  }
  return counts;
}

std::size_t TopLevel(const CountsOfLevels& counts) {
  std::size_t top = counts.size() - 1;
  while (top > 0 && counts[top] == 0) --top;
  return top;
}

bool Wants(const Chunk& chunk, std::uint32_t member) {
  return (chunk.wants_reply[member / 64] >> (member % 64) & 1) != 0;
}

// S2: a slot and the chunk that is staged in it refer to each other.
void CheckStaged(const JobShard& shard, const Chunk& chunk, std::uint32_t member) {
  const std::uint32_t rank = chunk.RankOf(member).value;
  const Lane& lane = shard.lanes[rank];
  const SlotIndex slot = chunk.staged_slot[member];
  PHUB_CHECK(lane.state == Lane::State::kOpen, "S7 chunk={} rank={}", chunk.index.value, rank);
  PHUB_CHECK(member >= chunk.folded_count, "S1 chunk={} rank={} folded={}", chunk.index.value, rank,
             chunk.folded_count);
  if (slot == kNoSlot) return;
  PHUB_CHECK(slot.value < lane.slot_chunk.size(), "S2 chunk={} rank={} slot={}", chunk.index.value,
             rank, slot.value);
  PHUB_CHECK(lane.slot_chunk[slot.value] == chunk.index, "S2 chunk={} rank={} slot={} holds={}",
             chunk.index.value, rank, slot.value, lane.slot_chunk[slot.value].value);
}

// S8: the counts of sums that wait for a decision, and of decided sums that are not applied yet.
void CheckIteration(const JobShard& shard) {
  const ShardIteration& iteration = shard.iteration;
  std::uint32_t summed = 0;
  std::uint32_t decided = 0;
  for (std::uint32_t i = 0; i < shard.chunk_count; ++i) summed += shard.chunks()[i]->is_summed;
  for (const Lane& lane : shard.lanes) decided += lane.decided;
  PHUB_CHECK(summed == iteration.summed_count + iteration.applying_count,
             "S8 chunks={} summed={} applying={}", summed, iteration.summed_count,
             iteration.applying_count);
  PHUB_CHECK(decided == iteration.decided_count, "S8 lanes={} decided={}", decided,
             iteration.decided_count);
}

// S9: the list of queued rounds has exactly the chunks with is_queued.
void CheckQueue(const JobShard& shard) {
  const schedule::JobTurn& turn = shard.turn;
  std::uint32_t listed = 0;
  for (const Chunk* chunk = turn.first; chunk != nullptr; chunk = chunk->next_queued) {
    PHUB_CHECK(chunk->is_queued, "S9 chunk={}", chunk->index.value);
    PHUB_CHECK(chunk->next_queued != nullptr || chunk == turn.last, "S9 chunk={}",
               chunk->index.value);
    PHUB_CHECK(++listed <= shard.chunk_count, "S9 the list has a cycle");
  }
  std::uint32_t queued = 0;
  for (std::uint32_t i = 0; i < shard.chunk_count; ++i) queued += shard.chunks()[i]->is_queued;
  PHUB_CHECK(queued == listed, "S9 queued={} listed={}", queued, listed);
  PHUB_CHECK(turn.waits() == (turn.first != nullptr), "S9 listed={}", listed);
}

// S10: a snapshot counts the chunks that are not copied yet.
void CheckSnapshot(const JobShard& shard) {
  const CheckpointImage* const image = shard.snapshot;
  if (image == nullptr) return;
  std::uint32_t left = 0;
  for (std::uint32_t i = 0; i < shard.snapshot_chunks; ++i) {
    const bool ready = image->chunks[i].ready.load(std::memory_order_relaxed);
    left += shard.chunks()[i]->IsSaved() && !ready;
  }
  PHUB_CHECK(left == image->chunks_left, "S10 left={} counted={}", left, image->chunks_left);
}

// S13: the stream counts the chunk's rounds as the shard does, and knows of pushes over tcp.
void CheckStream(const JobShard& shard, const Chunk& chunk) {
  if (shard.sums == nullptr || !shard.sums->Has(chunk.index)) return;
  const bool streamed = shard.sums->IsStreamed(chunk.index);
  const Iteration next = shard.sums->stream.iteration(chunk.index);
  PHUB_CHECK(next.value == chunk.applied.value + (streamed ? 2 : 1), "S13 chunk={} next={}",
             chunk.index.value, next.value);
  const bool pushed = chunk.arrived_count() > 0 && !streamed;
  PHUB_CHECK(!pushed || shard.sums->stream.IsOverTcp(chunk.index), "S13 chunk={} arrived={}",
             chunk.index.value, chunk.arrived_count());
}

}  // namespace

void CheckChunk(const JobShard& shard, const Chunk& chunk) {
  const std::uint32_t members = chunk.member_count;
  PHUB_CHECK(chunk.folded_count <= members, "S1 chunk={} folded={}", chunk.index.value,
             chunk.folded_count);
  std::uint32_t staged = 0;
  for (std::uint32_t member = 0; member < members; ++member) {
    const Rank rank = chunk.RankOf(member);
    if (chunk.staged_data[member] != nullptr) {
      ++staged;
      CheckStaged(shard, chunk, member);
    } else {
      PHUB_CHECK(chunk.staged_slot[member] == kNoSlot, "S2 chunk={} rank={}", chunk.index.value,
                 rank.value);
    }
    // S7: only ranks with a lane wait for a reply.
    PHUB_CHECK(!Wants(chunk, member) || shard.lanes[rank.value].state == Lane::State::kOpen,
               "S7 chunk={} rank={}", chunk.index.value, rank.value);
    // S11: a reply is owed only for a push of the round.
    PHUB_CHECK(!Wants(chunk, member) || chunk.HasArrived(rank), "S11 chunk={} rank={}",
               chunk.index.value, rank.value);
  }
  CheckStream(shard, chunk);
  PHUB_CHECK(staged == chunk.staged_count, "S1 chunk={} staged={} counted={}", chunk.index.value,
             staged, chunk.staged_count);
  PHUB_CHECK(!chunk.is_summed || chunk.folded_count == members, "S8 chunk={} folded={}",
             chunk.index.value, chunk.folded_count);
}

void CheckLane(const JobShard& shard, Rank rank) {
  const Lane& lane = shard.lanes[rank.value];
  std::uint32_t used = 0;
  CountsOfLevels used_at{};
  for (std::size_t slot = 0; slot < lane.slot_chunk.size(); ++slot) {
    const ChunkIndex held = lane.slot_chunk[slot];
    if (held == ChunkIndex::Max()) continue;
    ++used;
    PHUB_CHECK(held.value < shard.chunk_count, "S2 rank={} slot={} chunk={}", rank.value, slot,
               held.value);
    const Chunk& chunk = *shard.chunks()[held.value];
    ++used_at[chunk.key->level];
    PHUB_CHECK(chunk.IsMember(rank) && chunk.staged_slot[chunk.IndexOf(rank)].value == slot,
               "S2 rank={} slot={} chunk={}", rank.value, slot, held.value);
  }
  PHUB_CHECK(used == lane.slots_used && used_at == lane.slots_at, "S3 rank={} used={} counted={}",
             rank.value, used, lane.slots_used);
  PHUB_CHECK(lane.replies_posted <= shard.config.replies_per_lane_max, "S6 rank={} posted={}",
             rank.value, lane.replies_posted);
  PHUB_CHECK(lane.replies_draining <= lane.replies_posted, "S6 rank={} draining={} posted={}",
             rank.value, lane.replies_draining, lane.replies_posted);
  PHUB_CHECK(lane.credits_waiting.size() <= lane.slot_chunk.size(), "S6 rank={} credits={}",
             rank.value, lane.credits_waiting.size());
  if (lane.state == Lane::State::kAbsent) {
    PHUB_CHECK(used == 0 && lane.staged_in_place == 0 && lane.replies_pending == 0 &&
                   lane.credits_waiting.empty() && lane.summed_pending == 0,
               "S7 rank={} used={} in_place={} pending={}", rank.value, used, lane.staged_in_place,
               lane.replies_pending);
  }
}

// S4: the invariant that prevents deadlock. A job that has failed does not fold any more.
void CheckFullLane(const JobShard& shard, Rank rank) {
  if (!aggregate::LaneFull(shard, rank) || !shard.live()) return;
  if (aggregate::FreesItself(shard, rank)) return;
  for (const ChunkIndex held : shard.lanes[rank.value].slot_chunk) {
    if (held == ChunkIndex::Max()) continue;
    const Chunk& chunk = *shard.chunks()[held.value];
    if (!aggregate::FullFor(shard, rank, chunk)) continue;
    PHUB_CHECK(!wire::HasRoot(chunk.operation), "S4 rank={} chunk={}", rank.value, held.value);
    PHUB_CHECK(chunk.staged_data[chunk.folded_count] == nullptr, "S4 rank={} chunk={} folded={}",
               rank.value, held.value, chunk.folded_count);
  }
}

void CheckShard(const JobShard& shard) {
  std::uint32_t full = 0;
  std::uint32_t backlog = 0;
  std::uint32_t departed = 0;
  for (std::uint32_t rank = 0; rank < shard.config.world_size; ++rank) {
    const Lane& lane = shard.lanes[rank];
    CheckLane(shard, Rank{rank});
    CheckFullLane(shard, Rank{rank});
    full += aggregate::LaneFull(shard, Rank{rank});
    departed += lane.departed;
    backlog += lane.replies_pending + lane.summed_pending +
               static_cast<std::uint32_t>(lane.credits_waiting.size());
    const std::uint32_t pending = CountBits(lane.pending_reply, shard.chunk_count) +
                                  CountBits(lane.pending_previous, shard.chunk_count);
    PHUB_CHECK(pending == lane.replies_pending, "S5 rank={} bits={} counted={}", rank, pending,
               lane.replies_pending);
    PHUB_CHECK(PendingAt(shard, lane) == lane.replies_pending_at, "S5 rank={} levels differ", rank);
    PHUB_CHECK(CountBits(lane.pending_summed, shard.chunk_count) == lane.summed_pending,
               "S5 rank={} counted={}", rank, lane.summed_pending);
    std::uint32_t in_place = 0;
    for (std::uint32_t i = 0; i < shard.chunk_count; ++i) {
      const Chunk& chunk = *shard.chunks()[i];
      const std::uint32_t member = chunk.IndexOf(Rank{rank});
      in_place += member != kNoMember && chunk.staged_data[member] != nullptr &&
                  chunk.staged_slot[member] == kNoSlot;
    }
    PHUB_CHECK(in_place == lane.staged_in_place, "S3 rank={} in_place={} counted={}", rank,
               in_place, lane.staged_in_place);
  }
  PHUB_CHECK(full == shard.lanes_full, "S3 full={} counted={}", full, shard.lanes_full);
  PHUB_CHECK(backlog == shard.reply_backlog, "S5 backlog={} counted={}", backlog,
             shard.reply_backlog);
  PHUB_CHECK(departed == shard.departed_count, "S12 departed={} counted={}", departed,
             shard.departed_count);
  for (std::uint32_t i = 0; i < shard.chunk_count; ++i) {
    const Chunk& chunk = *shard.chunks()[i];
    PHUB_CHECK(shard.IsHole(chunk) || chunk.index.value == i, "S12 chunk={}", i);
    CheckChunk(shard, chunk);
  }
  PHUB_CHECK(ChunksAt(shard) == shard.chunks_at, "S12 levels differ");
  PHUB_CHECK(TopLevel(shard.chunks_at) == shard.top_level, "S12 top={}", shard.top_level);
  CheckIteration(shard);
  CheckQueue(shard);
  CheckSnapshot(shard);
}

}  // namespace phub::server
