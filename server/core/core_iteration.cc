// Jobs with apply=iteration: rounds are summed and wait in their accumulators, and the workers
// decide what becomes of them. A rank is told of every chunk that is summed; once it knows of all,
// on every core loop and daemon, it decides, and says so on every lane. All ranks know the same, so
// they decide the same; a core loop applies what they say when all have said it. The reasons
// are in docs/internals/jobs.md.
#include <bit>
#include <cstring>
#include <utility>

#include "server/core/core_loop_state.h"
#include "server/core/optimize/optimize.h"
#include "server/core/state/shard_state.h"

namespace phub::server {

// Every rank's gradient is here: their sum moves to the accumulator, and the slots are free.
void CoreLoop::State::SumRound(JobShard& shard, Chunk& chunk) {
  aggregate::FoldAll(shard, chunk, freed);  // who is told of the sum is told of the slot
  if (shard.non_finite.seen) TellNonFinite(shard);
  if (!shard.live()) return;  // rejected: nothing of the iteration was applied
  if (shard.departed_count > 0) {
    // It pushed its part, and will not decide.
    std::uint32_t rank = 0;
    while (!shard.lanes[rank].departed) ++rank;
    return FaultDeparted(shard, chunk, Rank{rank});
  }
  ShardIteration& iteration = shard.iteration;
  if (shard.config.norms) {
    chunk.squared_norm = optimize::MakeGradient(chunk, shard.config.world_size);
  }
  chunk.is_summed = true;
  if (iteration.summed_count++ == 0) iteration.summed_since = now;
  replies.TellSummed(shard, chunk);
}

void CoreLoop::State::OnDecision(JobShard& shard, Rank rank, const wire::MessageHeader& header) {
  ShardIteration& iteration = shard.iteration;
  Lane& lane = shard.lanes[rank.value];
  if (lane.decided) return;  // again, on a new lane
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
  counters.Add(CoreCounter::decisions);
  iteration.applying_count = std::exchange(iteration.summed_count, 0);
  // A run of the loop is bounded, and an iteration is long: its chunks take turns with other work.
  for (std::uint32_t i = 0; i < shard.chunk_count; ++i) fair.Push(shard, *shard.chunks()[i]);
}

// REQUIRES: it is decided. The next version is in place, or, if it is skipped, all that the chunk
// has keeps its bits and is called the next version.
void CoreLoop::State::ApplySummed(JobShard& shard, Chunk& chunk) {
  ShardIteration& iteration = shard.iteration;
  PHUB_CHECK(iteration.applying_count > 0, "chunk={}", chunk.index.value);
  state::BeforeRound(shard, chunk);
  const std::span<std::byte* const> own = replies.OwnReplies(shard, chunk);
  if (iteration.skip) {
    counters.Add(CoreCounter::rounds_skipped);
    for (std::byte* const reply : own) {
      std::memcpy(reply, chunk.Parameters(chunk.applied), chunk.reply_bytes());
    }
  } else {
    optimize::ApplySummed(chunk, shard.config.world_size, shard.config.norms, iteration.scale, own,
                          optimize::StreamsResults(shard, own.size()));
  }
  chunk.is_summed = false;
  --iteration.applying_count;
  CompleteRound(shard, chunk, iteration.skip);
}

}  // namespace phub::server
