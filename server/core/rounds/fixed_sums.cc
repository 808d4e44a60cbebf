#include "server/core/rounds/fixed_sums.h"

#include "server/core/checkpoint/shard_checkpoint.h"
#include "server/core/optimize/optimize.h"
#include "server/core/rounds/plain.h"

namespace phub::server::fixed_sums {

Made Finish(RoundStages& stages, JobShard& shard, Chunk& chunk) {
  if (chunk.operation != wire::RoundOperation::kReduce || chunk.key->sum_block == 0) {
    return plain::Finish(stages, shard, chunk);
  }
  checkpoint::BeforeRound(shard, chunk);
  const std::span<std::byte* const> own = stages.replies.OwnReplies(shard, chunk);
  const auto gradients = aggregate::GatherGradients(chunk, stages.terms);
  return stages.Screen(
      shard, chunk,
      optimize::ApplyFixed(chunk, gradients, own, optimize::StreamsResults(shard, own.size()),
                           shard.long_work));
}

}  // namespace phub::server::fixed_sums
