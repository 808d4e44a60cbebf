#include "server/core/rounds/round_stages.h"

#include "server/core/aggregate/screening.h"
#include "server/core/count_work.h"
#include "server/core/optimize/optimize.h"

namespace phub::server {

TracedSpan SpanOf(const Chunk& chunk) {
  return {.round = std::uint64_t{chunk.applied.value} + 1,
          .iteration = chunk.reductions,
          .key = chunk.key->key,
          .chunk = chunk.index,
          .operation = chunk.operation,
          .pool = chunk.pool};
}

Made RoundStages::Optimize(JobShard& shard, Chunk& chunk, const simd::Terms& sum,
                           std::uint32_t ranks, std::span<std::byte* const> own_replies,
                           bool streams) {
  if (shard.memory != nullptr) optimize::CountMemory(shard, chunk, sum, own_replies.size());
  return Screen(shard, chunk,
                optimize::ApplyRound(chunk, sum, ranks, own_replies, streams, shard.long_work));
}

Made RoundStages::Screen(JobShard& shard, Chunk& chunk, bool non_finite) {
  if (!non_finite) return Made::kVersion;
  // In a job that spans racks no rank is named here, because the rank's own rack has reported it.
  aggregate::NoteNonFinite(shard, chunk, chunk.member_count);
  return Report(shard);
}

Made RoundStages::Report(JobShard& shard) {
  outbox.ReportNonFinite(shard);
  return shard.live() ? Made::kVersion : Made::kNothing;
}

void RoundStages::CountRound(JobShard& shard, Rank last, const Chunk& chunk, TimeNs gathered_at) {
  loop.counters.Add(CoreCounter::rounds);
  CountGathered(shard, chunk, last, gathered_at);
  if (shard.trace == nullptr) [[likely]]
    return;
  TracedSpan span = SpanOf(chunk);
  span.work = TracedSpan::Work::kGather;
  span.rank = static_cast<std::uint16_t>(shard.config.rank_base + last.value);
  span.begin = chunk.round_since;
  span.end = gathered_at;
  shard.trace->Add(span);
}

void RoundStages::Credit(JobShard& shard, const aggregate::FreedSlot& slot) {
  if (replies.Credit(shard, slot.rank, slot.chunk, slot.slot)) return;
  outbox.Fault({.code = FaultCode::kSlotOccupied,
                .source = slot.rank,
                .key = shard.chunks()[slot.chunk.value]->key->key,
                .shard = &shard});
}

}  // namespace phub::server
