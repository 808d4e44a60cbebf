#include "server/core/rounds/across_racks.h"

#include <cstring>

#include "common/base/check.h"
#include "server/core/checkpoint/shard_checkpoint.h"

namespace phub::server::across_racks {
namespace {

using exchange::Step;
using wire::RoundOperation;

void Refuse(RoundStages& stages, JobShard& shard, RackIndex rack,
            const exchange::Verdict& verdict) {
  stages.outbox.CountRefusal(verdict.fault);
  if (rack != shard.exchange->plan.self) stages.loop.counters.Add(CoreCounter::refused_peer);
  const Chunk* const chunk = verdict.chunk;
  stages.outbox.Fault(
      {.code = verdict.fault,
       .source = rack,
       .other = verdict.other,
       .key = chunk != nullptr ? chunk->key->key : KeyIndex::Max(),
       .iteration = chunk != nullptr ? Iteration{chunk->applied.value + 1} : Iteration{},
       .shard = &shard});
}

// At the home: runs the optimizer, or puts loaded state in place. Control may have dropped the
// state while the round waited for other racks.
Made ApplyTotal(RoundStages& stages, JobShard& shard, Chunk& chunk) {
  PHUB_CHECK(chunk.is_home, "chunk={}", chunk.index.value);
  checkpoint::BeforeRound(shard, chunk);
  if (chunk.operation == RoundOperation::kLoad && !shard.CheckpointIsLoaded(chunk)) {
    Refuse(stages, shard, shard.exchange->plan.self,
           {Step::kFault, FaultCode::kNoCheckpoint, &chunk});
    return Made::kNothing;
  }
  const std::span<std::byte* const> own = stages.replies.OwnReplies(shard, chunk);
  if (chunk.operation == RoundOperation::kLoad) {
    checkpoint::PutInPlace(shard, chunk, own);
    return Made::kVersion;
  }
  simd::Terms total;
  if (chunk.operation == RoundOperation::kReduce) {
    total.folded = chunk.accumulator;
  } else {
    stages.terms[0] = chunk.accumulator;
    total.inputs = {stages.terms.data(), 1};
  }
  return stages.Optimize(shard, chunk, total, chunk.exchange->rank_count, own, /*streams=*/false);
}

// At other racks: the next version has landed in the chunk's memory.
Made TakeResult(RoundStages& stages, JobShard& shard, Chunk& chunk) {
  PHUB_CHECK(!chunk.is_home, "chunk={}", chunk.index.value);
  for (std::byte* const own : stages.replies.OwnReplies(shard, chunk)) {
    std::memcpy(own, chunk.NextParameters(), chunk.reply_bytes());
    shard.CountMemory(MemoryWork::kCopies,
                      {.read = chunk.reply_bytes(), .written = chunk.reply_bytes()});
  }
  if (chunk.operation == RoundOperation::kLoad) checkpoint::CountAsLoaded(shard, chunk);
  return Made::kVersion;
}

Made Follow(RoundStages& stages, JobShard& shard, RackIndex rack,
            const exchange::Verdict& verdict) {
  switch (verdict.step) {
    case Step::kWaits: return Made::kNothing;
    case Step::kTotal: return ApplyTotal(stages, shard, *verdict.chunk);
    case Step::kResult: return TakeResult(stages, shard, *verdict.chunk);
    case Step::kFault: break;
  }
  Refuse(stages, shard, rack, verdict);
  return Made::kNothing;
}

}  // namespace

Made Finish(RoundStages& stages, JobShard& shard, Chunk& chunk) {
  const bool has_payload = aggregate::FoldAll(shard, chunk, stages.freed);
  for (const aggregate::FreedSlot& slot : stages.freed.all()) stages.Credit(shard, slot);
  stages.outbox.ReportNonFinite(shard);
  if (!shard.live()) return Made::kNothing;  // rejected: do not send the sum to other racks
  return Follow(stages, shard, shard.exchange->plan.self,
                stages.exchanges.OnLocalSum(shard, chunk, has_payload));
}

Outcome OnMessage(RoundStages& stages, JobShard& shard, RackIndex rack,
                  const transport::ReceivedMessage& message) {
  const exchange::Verdict verdict = stages.exchanges.OnMessage(shard, rack, message);
  return {verdict.chunk, Follow(stages, shard, rack, verdict)};
}

}  // namespace phub::server::across_racks
