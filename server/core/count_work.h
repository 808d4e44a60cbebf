// Counts what a chunk's rounds move and how long they take, for its job and for its group. Called
// on the core loop.
#pragma once

#include <cstdint>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "server/core/job_shard.h"
#include "server/metrics/shard_metrics.h"

namespace phub::server {

inline void CountGradient(JobShard& shard, const Chunk& chunk, std::uint64_t bytes) {
  shard.metrics.CountGradient(bytes);
  if (WorkMetrics* const group = chunk.key->group_work) group->CountGradient(bytes);
}

inline void CountReplies(JobShard& shard, const Chunk& chunk, std::uint64_t bytes) {
  shard.metrics.CountReplies(bytes);
  if (WorkMetrics* const group = chunk.key->group_work) group->CountReplies(bytes);
}

// The round's last gradient, from `last`, has arrived.
inline void CountGathered(JobShard& shard, const Chunk& chunk, Rank last, TimeNs gathered_at) {
  const DurationNs duration = gathered_at - chunk.round_since;
  shard.metrics.CountRound(duration);
  WorkMetrics* const group = chunk.key->group_work;
  if (group != nullptr) group->CountRound(duration);
  if (chunk.member_count == 1) return;
  const DurationNs waited = gathered_at - chunk.last_awaited_since;
  shard.metrics.CountLast(last, waited);
  if (group != nullptr) group->CountWait(waited);
}

}  // namespace phub::server
