#include "server/core/rounds/plain.h"

#include "common/base/check.h"
#include "server/core/checkpoint/shard_checkpoint.h"
#include "server/core/optimize/optimize.h"

namespace phub::server::plain {

bool ScreensBeforeReplies(const RoundStages& stages, const JobShard& shard, const Chunk& chunk) {
  const bool reduces = chunk.operation == wire::RoundOperation::kReduce ||
                       chunk.operation == wire::RoundOperation::kPool;
  return reduces && shard.config.screening != Screening::kOff &&
         stages.replies.own_replies_overwrite();
}

Made Finish(RoundStages& stages, JobShard& shard, Chunk& chunk) {
  PHUB_DCHECK(chunk.exchange == nullptr && !chunk.is_summed, "chunk={}", chunk.index.value);
  checkpoint::BeforeRound(shard, chunk);
  const std::span<std::byte* const> own = stages.replies.OwnReplies(shard, chunk);
  if (chunk.operation == wire::RoundOperation::kLoad) {
    checkpoint::PutInPlace(shard, chunk, own);
    return Made::kVersion;
  }
  return Apply(stages, shard, chunk, own);
}

Made Apply(RoundStages& stages, JobShard& shard, Chunk& chunk, std::span<std::byte* const> own) {
  if (ScreensBeforeReplies(stages, shard, chunk)) {
    aggregate::FoldAll(shard, chunk, stages.freed);  // no credits: the replies free the slots, too
  }
  const simd::Terms sum = aggregate::GatherTerms(shard, chunk, stages.terms);
  return stages.Optimize(shard, chunk, sum, chunk.member_count, own,
                         optimize::StreamsResults(shard, own.size()));
}

}  // namespace phub::server::plain
