#include "server/core/key_remover.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <iterator>

#include "common/base/check.h"
#include "server/core/aggregate/lane_room.h"
#include "server/core/exchange/shard_exchange.h"
#include "server/core/loop/lanes.h"
#include "server/core/on_core_loop.h"
#include "server/core/reply/bits.h"

namespace phub::server {
namespace {

bool IsRemoved(const KeyRemoval& removal, const ShardKey& key) {
  if (removal.group != nullptr) return key.members == removal.group;
  return key.members == nullptr && key.key.value >= removal.first_key;
}

// Calls each(place in the table of keys) for every removed key, the last one first.
template <typename Each>
void ForEachRemoved(const JobShard& shard, const KeyRemoval& removal, Each&& each) {
  const bool in_group = removal.group != nullptr;
  const std::uint32_t first = in_group ? kGroupKeysFirst : removal.first_key;
  for (std::uint32_t end = in_group ? kGroupKeysFirst + shard.group_key_end : shard.key_count;
       end > first; --end) {
    ShardKey*& key = shard.keys()[end - 1];
    if (key != nullptr && IsRemoved(removal, *key)) each(key);
  }
}

bool Test(const Lane& lane, std::uint32_t chunk) {
  return reply::Test(lane.pending_reply, chunk) || reply::Test(lane.pending_previous, chunk) ||
         reply::Test(lane.pending_summed, chunk);
}

// A rank that still has a push of the chunk here; Max(): nobody.
Rank PusherOf(const Chunk& chunk) {
  if (chunk.is_queued) return chunk.first_rank;
  if (chunk.arrived_count() == 0) return Rank::Max();
  for (std::uint32_t member = 0;; ++member) {
    PHUB_CHECK(member < chunk.member_count, "chunk={}", chunk.index.value);
    if (chunk.HasArrivedAt(member)) return chunk.RankOf(member);
  }
}

// Who waits for the exchange of a chunk. An aggregator has no ranks: a rack that it sends to.
LaneOwner WaiterFor(const Chunk& chunk) {
  if (chunk.member_count > 0) return chunk.RankOf(0);
  const exchange::ChunkExchange& state = *chunk.exchange;
  if (state.partial_waits) return *state.tree->reduce_parent;
  return RackIndex{static_cast<std::uint32_t>(std::countr_zero(state.results_wait))};
}

// Who still has a push of the key here, or must be sent something of it. Nobody: the default.
// Lanes are looked at only if they have to send something: other jobs wait meanwhile.
LaneOwner UserOf(const JobShard& shard, const ShardKey& key, const Chunk*& used) {
  for (std::uint32_t i = 0; i < key.chunk_count; ++i) {
    used = shard.chunks()[key.first_chunk.value + i];
    if (used->exchange != nullptr && !exchange::IsIdle(*used->exchange)) return WaiterFor(*used);
    const Rank pusher = PusherOf(*used);
    if (pusher != Rank::Max()) return pusher;
  }
  for (std::uint32_t rank = 0; rank < shard.lanes.size(); ++rank) {
    const Lane& lane = shard.lanes[rank];
    if (lane.replies_pending == 0 && lane.summed_pending == 0) continue;
    for (std::uint32_t i = 0; i < key.chunk_count; ++i) {
      used = shard.chunks()[key.first_chunk.value + i];
      if (Test(lane, used->index.value)) return Rank{rank};
    }
  }
  return {};
}

bool Contains(std::span<const std::span<const std::byte>> sorted, const std::byte* data) {
  const std::less<const std::byte*> before;
  const auto after = std::ranges::upper_bound(
      sorted, data, before, [](std::span<const std::byte> each) { return each.data(); });
  if (after == sorted.begin()) return false;
  const std::span<const std::byte> memory = *std::prev(after);
  return before(data, memory.data() + memory.size());
}

// A chunk that is not removed, and whose gradient of this rank lies in removed memory; null: none.
const Chunk* StagedIn(const KeyRemoval& removal, const JobShard& shard, Rank rank) {
  const std::vector<std::span<const std::byte>>& memory = removal.shared[rank.value];
  if (memory.empty() || shard.lanes[rank.value].staged_in_place == 0) return nullptr;
  for (std::uint32_t i = 0; i < shard.chunk_count; ++i) {
    const Chunk& chunk = *shard.chunks()[i];
    if (chunk.staged_count == 0 || !chunk.IsMember(rank)) continue;
    if (Contains(memory, chunk.staged_data[chunk.IndexOf(rank)])) return &chunk;
  }
  return nullptr;
}

// Whether a lost lane may still send replies.
bool SomeLaneCloses(const JobShard& shard) {
  std::uint32_t open = 0;
  for (const Lane& lane : shard.lanes) open += lane.state == Lane::State::kOpen;
  if (shard.exchange != nullptr)
    for (const exchange::PeerLane& lane : shard.exchange->peers) open += lane.open;
  return shard.lanes_open > open;
}

bool HasDrained(const JobShard& shard) {
  for (const Lane& lane : shard.lanes) {
    if (lane.replies_draining > 0) return false;
  }
  if (shard.exchange != nullptr) {
    for (const exchange::PeerLane& lane : shard.exchange->peers)
      if (lane.draining > 0) return false;
  }
  return !SomeLaneCloses(shard);
}

}  // namespace

bool KeyRemover::Refuse(JobShard& shard, LaneOwner user, const Chunk& chunk) {
  outbox_.Fault({.code = FaultCode::kKeyInUse,
                 .source = user,
                 .key = chunk.key->key,
                 .iteration = Iteration{chunk.applied.value + 1},
                 .shard = &shard});
  return false;
}

bool KeyRemover::IsUnused(JobShard& shard, const KeyRemoval& removal) {
  LaneOwner user;
  const Chunk* used = nullptr;
  ForEachRemoved(shard, removal, [&](ShardKey* key) {
    const Chunk* chunk = nullptr;
    const LaneOwner found = UserOf(shard, *key, chunk);
    if (found == LaneOwner{}) return;
    user = found;
    used = chunk;
  });
  if (user != LaneOwner{}) return Refuse(shard, user, *used);
  for (std::uint32_t rank = 0; rank < removal.shared.size(); ++rank) {
    // It must not lie in memory that is unmapped.
    const Chunk* const staged = StagedIn(removal, shard, Rank{rank});
    if (staged != nullptr) return Refuse(shard, Rank{rank}, *staged);
  }
  return true;
}

void KeyRemover::Begin(JobShard& shard, const KeyRemoval& removal) {
  PHUB_ON_CORE_LOOP();
  if (!shard.live()) return;  // control frees everything when the job has ended
  PHUB_CHECK(shard.removal == nullptr);
  PHUB_CHECK(shard.exchange == nullptr || removal.group != nullptr);
  PHUB_CHECK(!shard.config.restart && removal.shared.size() <= shard.config.world_size);
  if (!IsUnused(shard, removal)) return;
  ForEachRemoved(shard, removal, [&](ShardKey*& key) {
    PHUB_CHECK(key->collective, "key={}", key->key.value);
    for (std::uint32_t i = 0; i < key->chunk_count; ++i)
      RemoveChunk(shard, key->first_chunk.value + i);
    key = nullptr;
  });
  LoopLanes::LimitUnsent(shard);
  ShrinkTables(shard);
  RemoveStreamChunks(shard, shard.chunk_count);
  for (Lane& lane : shard.lanes) lane.replies_draining = lane.replies_posted;
  if (shard.exchange != nullptr)
    for (exchange::PeerLane& lane : shard.exchange->peers) lane.draining = lane.posted;
  shard.removal = &removal;
  ++draining_count_;
}

void KeyRemover::RemoveChunk(JobShard& shard, std::uint32_t number) {
  if (const auto* const exchange = shard.chunks()[number]->exchange)
    exchange::UnlinkChunk(shard, *exchange);
  turns_.RemoveChunk(shard, *shard.chunks()[number]);
  aggregate::NoteChunkRemoved(shard, shard.chunks()[number]->key->level);
  // A later key may have this number; the checkpoint that was loaded last is not about it.
  if (shard.loaded != nullptr && number < shard.loaded->chunk_count)
    shard.loaded->chunks[number].ready.store(false, std::memory_order_relaxed);
  shard.chunks()[number] = shard.no_chunk.get();
}

void KeyRemover::ShrinkTables(JobShard& shard) {
  while (shard.chunk_count > 0 && shard.IsHole(*shard.chunks()[shard.chunk_count - 1]))
    shard.chunks()[--shard.chunk_count] = nullptr;
  shard.snapshot_chunks = std::min(shard.snapshot_chunks, shard.chunk_count);
  while (shard.key_count > 0 && shard.keys()[shard.key_count - 1] == nullptr) --shard.key_count;
  while (shard.group_key_end > 0 &&
         shard.keys()[kGroupKeysFirst + shard.group_key_end - 1] == nullptr)
    --shard.group_key_end;
}

void KeyRemover::Advance() {
  if (draining_count_ == 0) return;
  for (JobShard* const shard : loop_.shards) {
    if (shard->removal == nullptr || !HasDrained(*shard)) continue;
    const KeyRemoval* const removal = shard->removal;
    Drop(*shard);
    outbox_.Emit({.kind = Event::Kind::kKeysRemoved, .shard = shard, .removal = removal});
  }
}

void KeyRemover::Drop(JobShard& shard) {
  if (shard.removal == nullptr) return;
  shard.removal = nullptr;
  --draining_count_;
}

}  // namespace phub::server
