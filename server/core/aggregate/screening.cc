#include "server/core/aggregate/screening.h"

namespace phub::server::aggregate {

void NoteNonFinite(JobShard& shard, Chunk& chunk, std::uint32_t end) {
  if (shard.config.screening == Screening::kOff) return;
  Rank first = Rank::Max();
  std::uint32_t bad_count = 0;
  const bool in_fixed_point = chunk.key->sum_block != 0;
  for (std::uint32_t member = in_fixed_point ? 0 : chunk.folded_count; member < end; ++member) {
    const std::byte* const gradient =
        member < chunk.folded_count ? chunk.CopyOf(member) : chunk.staged_data[member];
    const bool is_bad =
        simd::HasNonFinite(chunk.gradient_type(), gradient, chunk.elements(), chunk.Encoded());
    if (shard.long_work != nullptr)
      shard.long_work->Note(chunk.elements() * numeric::ElementBytes(chunk.gradient_type()));
    if (!is_bad) continue;
    ++bad_count;
    if (first == Rank::Max()) first = chunk.RankOf(member);
  }
  NoteNonFiniteSum(shard, chunk, first, bad_count);
}

void NoteNonFiniteSum(JobShard& shard, Chunk& chunk, Rank first, std::uint32_t ranks) {
  if (shard.config.screening == Screening::kOff) return;
  shard.metrics.nonfinite_gradients.Add(ranks);
  if (chunk.folded_non_finite) return;  // this round's sum has been counted
  chunk.folded_non_finite = true;
  shard.metrics.nonfinite_sums.Add();
  if (shard.non_finite.seen) return;
  shard.non_finite = {true, first, chunk.key->key, Iteration{chunk.applied.value + 1}};
}

}  // namespace phub::server::aggregate
