// Removes the last keys of a shard, or those of a group: unlinks them and their chunks, so that
// later messages find neither, and reports kKeysRemoved once no transport sends from their memory
// any more.
//
// Every rank of the keys has all their replies, since it asks only then. So an honest rank has no
// round, no reply and no credit of these keys here; the only remains are replies that have arrived
// but whose kSent was not polled yet, and lanes that were lost and are not closed yet. A rank that
// still uses a key is a fault, and nothing is unlinked. Why numbers can be used again:
// docs/internals/jobs.md.
//
// Owned by CoreLoop::Impl; loop's thread. Nothing allocates.
#pragma once

#include <cstddef>

#include "server/core/job_shard.h"
#include "server/core/key_removal.h"
#include "server/core/loop/context.h"
#include "server/core/loop/outbox.h"
#include "server/core/loop/turns.h"

namespace phub::server {

class KeyRemover {
 public:
  KeyRemover(LoopContext& loop, Outbox& outbox, Turns& turns)
      : loop_(loop), outbox_(outbox), turns_(turns) {}

  // Executes kRemoveKeys.
  void Begin(JobShard& shard, const KeyRemoval& removal);
  // Reports the removals that have drained.
  void Advance();
  // The job ends: control frees the keys with it.
  void Drop(JobShard& shard);

 private:
  static void ShrinkTables(JobShard& shard);
  void RemoveChunk(JobShard& shard, std::uint32_t number);
  bool IsUnused(JobShard& shard, const KeyRemoval& removal);
  bool Refuse(JobShard& shard, LaneOwner user, const Chunk& chunk);

  LoopContext& loop_;
  Outbox& outbox_;
  Turns& turns_;
  std::size_t draining_count_ = 0;  // shards with a removal
};

}  // namespace phub::server
