#include "server/core/loop/turns.h"

#include "common/base/check.h"

namespace phub::server {

void Turns::AddJob(JobShard& shard) { queue_.AddJob(shard, loop_.now); }

void Turns::AddKeys(JobShard& shard, const KeyBatch& batch) { queue_.AddKeys(shard, batch); }

void Turns::RemoveChunk(JobShard& shard, const Chunk& chunk) { queue_.RemoveChunk(shard, chunk); }

void Turns::SetShare(JobShard& shard, const TenantShare& share) {
  queue_.SetShare(shard, share, loop_.now);
}

void Turns::RemoveJob(JobShard& shard) {
  queue_.RemoveJob(shard);
  if (shard.turn.held) --held_count_;
}

// A round of kLoad is never queued: it has no payload, and control may drop the loaded state
// meanwhile.
bool Turns::PutOff(JobShard& shard, Chunk& chunk) {
  // A queued round can become whole again after a rank came back. It stays queued even if the loop
  // is no longer shared; otherwise it would be finished twice.
  const bool waits = queue_.Shares() || chunk.is_queued;
  if (!waits || chunk.operation == wire::RoundOperation::kLoad) return false;
  loop_.counters.Add(CoreCounter::rounds_queued);
  queue_.Push(shard, chunk);
  return true;
}

bool Turns::UpdateHolds() {
  if (!queue_.Shares() && held_count_ == 0) return false;
  for (JobShard* const shard : loop_.shards) {
    const bool held = queue_.MustHold(*shard);
    if (held == shard->turn.held) continue;
    shard->turn.held = held;
    held ? ++held_count_ : --held_count_;
    lanes_.Hold(*shard, held);
  }
  return true;
}

void Turns::CheckInvariants() const {
  queue_.CheckInvariants(loop_.shards);
  std::size_t held = 0;
  for (const JobShard* const shard : loop_.shards) held += shard->turn.held;
  PHUB_CHECK(held == held_count_, "F3 held={} counted={}", held, held_count_);
}

}  // namespace phub::server
