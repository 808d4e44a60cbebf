#include "server/core/rounds/plain.h"

#include "common/base/check.h"
#include "server/core/checkpoint/shard_checkpoint.h"
#include "server/core/optimize/optimize.h"

namespace phub::server::plain {

Made Finish(RoundStages& stages, JobShard& shard, Chunk& chunk) {
  PHUB_DCHECK(shard.exchange == nullptr && !chunk.is_summed, "chunk={}", chunk.index.value);
  checkpoint::BeforeRound(shard, chunk);
  const std::span<std::byte* const> own = stages.replies.OwnReplies(shard, chunk);
  if (chunk.operation == wire::RoundOperation::kLoad) {
    checkpoint::PutInPlace(shard, chunk, own);
    return Made::kVersion;
  }
  const simd::Terms sum = aggregate::GatherTerms(shard, chunk, stages.terms);
  return stages.Optimize(shard, chunk, sum, chunk.member_count, own,
                         optimize::StreamsResults(shard, own.size()));
}

}  // namespace phub::server::plain
