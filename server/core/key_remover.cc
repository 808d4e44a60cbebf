#include "server/core/key_remover.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <iterator>

#include "common/base/check.h"
#include "server/core/on_core_loop.h"
#include "server/core/reply/bits.h"

namespace phub::server {
namespace {

bool IsRemoved(const KeyRemoval& removal, const Chunk& chunk) {
  return chunk.key->key.value >= removal.first_key;
}

std::uint32_t FirstRemovedChunk(const JobShard& shard, const KeyRemoval& removal) {
  std::uint32_t first = shard.chunk_count;
  while (first > 0 && IsRemoved(removal, *shard.chunks()[first - 1])) --first;
  return first;
}

// A rank that still has a push of the chunk here; Max(): nobody.
Rank PusherOf(const JobShard& shard, const Chunk& chunk) {
  if (chunk.is_queued) return chunk.first_rank;
  if (chunk.arrived_count() == 0) return Rank::Max();
  for (Rank rank{0};; ++rank.value) {
    PHUB_CHECK(rank.value < shard.config.world_size, "chunk={}", chunk.index.value);
    if (chunk.HasArrived(rank)) return rank;
  }
}

// The first chunk from `first` on about which the lane still has to send something; chunk_count:
// none.
std::uint32_t FirstPending(const JobShard& shard, const Lane& lane, std::uint32_t first) {
  if (lane.replies_pending == 0 && lane.summed_pending == 0) return shard.chunk_count;
  std::uint64_t mask = ~std::uint64_t{0} << first % reply::kWordBits;
  for (std::uint32_t word = first / reply::kWordBits; word < reply::WordsOfChunks(shard); ++word) {
    const std::uint64_t pending =
        mask & (lane.pending_reply[word] | lane.pending_previous[word] | lane.pending_summed[word]);
    if (pending != 0)
      return word * reply::kWordBits + static_cast<std::uint32_t>(std::countr_zero(pending));
    mask = ~std::uint64_t{0};
  }
  return shard.chunk_count;
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
const Chunk* StagedIn(const KeyRemoval& removal, const JobShard& shard, Rank rank,
                      std::uint32_t chunks_kept) {
  const std::vector<std::span<const std::byte>>& memory = removal.shared[rank.value];
  if (memory.empty() || shard.lanes[rank.value].staged_in_place == 0) return nullptr;
  for (std::uint32_t i = 0; i < chunks_kept; ++i) {
    const Chunk& chunk = *shard.chunks()[i];
    if (chunk.staged_count > 0 && Contains(memory, chunk.staged_data[rank.value])) return &chunk;
  }
  return nullptr;
}

// Whether a lost lane may still send replies.
bool SomeLaneCloses(const JobShard& shard) {
  std::uint32_t open = 0;
  for (const Lane& lane : shard.lanes) open += lane.state == Lane::State::kOpen;
  return shard.lanes_open > open;
}

bool HasDrained(const JobShard& shard) {
  for (const Lane& lane : shard.lanes) {
    if (lane.replies_draining > 0) return false;
  }
  return !SomeLaneCloses(shard);
}

}  // namespace

bool KeyRemover::Refuse(JobShard& shard, Rank rank, const Chunk& chunk) {
  outbox_.Fault({.code = FaultCode::kKeyInUse,
                 .source = rank,
                 .key = chunk.key->key,
                 .iteration = Iteration{chunk.applied.value + 1},
                 .shard = &shard});
  return false;
}

// Ranks are looked at one by one only if something of theirs is here: other jobs wait meanwhile.
bool KeyRemover::IsUnused(JobShard& shard, const KeyRemoval& removal) {
  const std::uint32_t first = FirstRemovedChunk(shard, removal);
  for (std::uint32_t i = first; i < shard.chunk_count; ++i) {
    const Chunk& chunk = *shard.chunks()[i];
    const Rank pusher = PusherOf(shard, chunk);
    if (pusher != Rank::Max()) return Refuse(shard, pusher, chunk);
  }
  for (std::uint32_t rank = 0; rank < shard.config.world_size; ++rank) {
    const std::uint32_t pending = FirstPending(shard, shard.lanes[rank], first);
    if (pending < shard.chunk_count) return Refuse(shard, Rank{rank}, *shard.chunks()[pending]);
  }
  for (std::uint32_t rank = 0; rank < removal.shared.size(); ++rank) {
    // It must not lie in memory that is unmapped.
    const Chunk* const staged = StagedIn(removal, shard, Rank{rank}, first);
    if (staged != nullptr) return Refuse(shard, Rank{rank}, *staged);
  }
  return true;
}

void KeyRemover::Begin(JobShard& shard, const KeyRemoval& removal) {
  PHUB_ON_CORE_LOOP();
  if (!shard.live()) return;  // control frees everything when the job has ended
  PHUB_CHECK(shard.removal == nullptr && shard.exchange == nullptr);
  PHUB_CHECK(!shard.config.restart && removal.shared.size() <= shard.config.world_size);
  if (!IsUnused(shard, removal)) return;
  while (shard.chunk_count > 0 && IsRemoved(removal, *shard.chunks()[shard.chunk_count - 1])) {
    Chunk*& last = shard.chunks()[--shard.chunk_count];
    PHUB_CHECK(last->key->collective, "chunk={}", shard.chunk_count);
    turns_.RemoveChunk(shard, *last);
    // A later key may have this number; the checkpoint that was loaded last is not about it.
    if (shard.loaded != nullptr && shard.chunk_count < shard.loaded->chunk_count) {
      shard.loaded->chunks[shard.chunk_count].ready.store(false, std::memory_order_relaxed);
    }
    last = nullptr;
  }
  shard.snapshot_chunks = std::min(shard.snapshot_chunks, shard.chunk_count);
  while (shard.key_count > removal.first_key) shard.keys()[--shard.key_count] = nullptr;
  for (Lane& lane : shard.lanes) lane.replies_draining = lane.replies_posted;
  shard.removal = &removal;
  ++draining_count_;
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
