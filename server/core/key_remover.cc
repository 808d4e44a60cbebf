#include "server/core/key_remover.h"

#include <algorithm>
#include <functional>

#include "common/base/check.h"
#include "server/core/on_core_loop.h"
#include "server/core/reply/bits.h"

namespace phub::server {
namespace {

bool IsRemoved(const KeyRemoval& removal, const Chunk& chunk) {
  return chunk.key->key.value >= removal.first_key;
}

// A rank that still has a push of the chunk here, or that a reply waits for; Max(): nobody.
Rank UserOf(const JobShard& shard, const Chunk& chunk) {
  for (std::uint32_t rank = 0; rank < shard.config.world_size; ++rank) {
    const Lane& lane = shard.lanes[rank];
    if (chunk.HasArrived(Rank{rank}) || reply::Test(lane.pending_reply, chunk.index.value) ||
        reply::Test(lane.pending_previous, chunk.index.value) ||
        reply::Test(lane.pending_summed, chunk.index.value)) {
      return Rank{rank};
    }
  }
  return chunk.is_queued ? chunk.first_rank : Rank::Max();
}

bool Contains(std::span<const std::byte> memory, const std::byte* data) {
  const std::less<const std::byte*> before;
  return !before(data, memory.data()) && before(data, memory.data() + memory.size());
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

// Gradients of other keys may be staged in place, and must not lie in memory that is unmapped.
bool KeyRemover::IsUnused(JobShard& shard, const KeyRemoval& removal) {
  for (std::uint32_t i = 0; i < shard.chunk_count; ++i) {
    const Chunk& chunk = *shard.chunks()[i];
    if (IsRemoved(removal, chunk)) {
      const Rank user = UserOf(shard, chunk);
      if (user != Rank::Max()) return Refuse(shard, user, chunk);
    }
    if (chunk.staged_count == 0) continue;
    for (std::uint32_t rank = 0; rank < removal.shared.size(); ++rank) {
      for (const std::span<const std::byte> memory : removal.shared[rank]) {
        if (Contains(memory, chunk.staged_data[rank])) return Refuse(shard, Rank{rank}, chunk);
      }
    }
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
