#include "server/core/rounds/whole_iteration.h"

#include <bit>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "server/core/checkpoint/shard_checkpoint.h"
#include "server/core/optimize/optimize.h"
#include "server/core/rounds/departed.h"

namespace phub::server::whole_iteration {
namespace {

// Folds every rank's gradient into the accumulator, which frees their slots, and notifies the
// ranks.
void Sum(RoundStages& stages, JobShard& shard, Chunk& chunk) {
  // No credits: the kSummed message also frees the rank's slot.
  aggregate::FoldAll(shard, chunk, stages.freed);
  stages.outbox.ReportNonFinite(shard);
  if (!shard.live()) return;  // rejected: no chunk of the iteration was applied
  if (departed::FaultIfUndecidable(stages.outbox, shard, chunk)) return;
  if (shard.config.norms) {
    chunk.squared_norm = optimize::MakeGradient(chunk, chunk.member_count);
  }
  chunk.is_summed = true;
  ShardIteration& iteration = shard.iteration;
  if (iteration.summed_count++ == 0) iteration.summed_since = stages.loop.now;
  PHUB_CHECK(iteration.summed_count <= iteration.chunk_count, "chunk={}", chunk.index.value);
  stages.replies.TellSummed(shard, chunk);
}

Made Apply(RoundStages& stages, JobShard& shard, Chunk& chunk) {
  ShardIteration& iteration = shard.iteration;
  PHUB_CHECK(iteration.applying_count > 0, "chunk={}", chunk.index.value);
  checkpoint::BeforeRound(shard, chunk);
  const std::span<std::byte* const> own = stages.replies.OwnReplies(shard, chunk);
  if (iteration.skip) {
    stages.loop.counters.Add(CoreCounter::rounds_skipped);
    for (std::byte* const reply : own) {
      std::memcpy(reply, chunk.Parameters(chunk.applied), chunk.reply_bytes());
    }
  } else {
    optimize::ApplySummed(chunk, chunk.member_count, shard.config.norms, iteration.scale, own,
                          optimize::StreamsResults(shard, own.size()), shard.long_work);
  }
  chunk.is_summed = false;
  --iteration.applying_count;
  return iteration.skip ? Made::kSkipped : Made::kVersion;
}

}  // namespace

Made Finish(RoundStages& stages, JobShard& shard, Chunk& chunk) {
  if (chunk.is_summed) return Apply(stages, shard, chunk);
  Sum(stages, shard, chunk);
  return Made::kNothing;
}

void Decide(RoundStages& stages, JobShard& shard, Rank rank, const wire::MessageHeader& header) {
  ShardIteration& iteration = shard.iteration;
  Lane& lane = shard.lanes[rank.value];
  if (lane.decided) return;  // repeated on a new lane
  PHUB_CHECK(iteration.summed_count == iteration.chunk_count, "summed={}", iteration.summed_count);
  if (iteration.decided_count == 0) {
    iteration.first_rank = rank;
    iteration.skip = (header.flags & wire::kFlagSkip) != 0;
    iteration.scale = std::bit_cast<double>(header.value_bits);
  }
  lane.decided = true;
  if (++iteration.decided_count < shard.config.world_size) return;
  PHUB_CHECK(iteration.applying_count == 0, "applying={}", iteration.applying_count);
  for (Lane& each : shard.lanes) each.decided = false;
  iteration.decided_count = 0;
  ++iteration.decisions;
  stages.loop.counters.Add(CoreCounter::decisions);
  iteration.applying_count = std::exchange(iteration.summed_count, 0);
  // A run of the loop is bounded and an iteration is long, so queue the chunks among other work.
  for (std::uint32_t i = 0; i < shard.chunk_count; ++i) {
    if (shard.chunks()[i]->is_summed) stages.turns.Queue(shard, *shard.chunks()[i]);
  }
}

}  // namespace phub::server::whole_iteration
