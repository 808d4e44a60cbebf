#include "server/core/rounds/fixed_sums.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "common/aggregation/fixed_point.h"
#include "server/core/aggregate/screening.h"
#include "server/core/checkpoint/shard_checkpoint.h"
#include "server/core/optimize/optimize.h"
#include "server/core/rounds/plain.h"
#include "server/core/shard_sums.h"

namespace phub::server::fixed_sums {
namespace {

// Turns the accumulator's integers into numbers, in place. True if some are not finite.
bool FromIntegers(const JobShard& shard, Chunk& chunk) {
  const ShardSums& sums = *shard.sums;
  const std::span<const std::uint8_t> exponents = sums.stream.Exponents(chunk.index);
  std::array<std::int32_t, aggregation::kFixedBlockMax> integers;
  std::array<float, aggregation::kFixedBlockMax> numbers;
  bool non_finite = false;
  for (std::uint32_t block = 0; block < exponents.size(); ++block) {
    const std::uint32_t first = block * sums.block;
    const std::uint32_t count = std::min(sums.block, chunk.element_count - first);
    std::byte* const at = chunk.accumulator + std::size_t{first} * sizeof(float);
    std::memcpy(integers.data(), at, count * sizeof(float));
    const std::span<float> sum = std::span(numbers).first(count);
    aggregation::FromFixed(std::span(integers).first(count), exponents[block],
                           shard.config.world_size, sum);
    const auto is_finite = [](float value) { return std::isfinite(value); };
    non_finite |= !std::ranges::all_of(sum, is_finite);
    std::memcpy(at, numbers.data(), count * sizeof(float));
  }
  return non_finite;
}

// An aggregator has added the gradients. The ranks have named themselves by their exponents.
Made FinishStreamed(RoundStages& stages, JobShard& shard, Chunk& chunk) {
  const std::span<std::byte* const> own = stages.replies.OwnReplies(shard, chunk);
  const bool non_finite = FromIntegers(shard, chunk);
  optimize::ApplySummed(chunk, shard.config.world_size, /*norms=*/false, /*scale=*/1.0, own,
                        optimize::StreamsResults(shard, own.size()), shard.long_work);
  if (!non_finite) return Made::kVersion;
  const ShardSums::Chunk& of_chunk = shard.sums->chunks[chunk.index.value];
  aggregate::NoteNonFiniteSum(shard, chunk, of_chunk.not_finite, of_chunk.not_finite_count);
  return stages.Report(shard);
}

}  // namespace

Made Finish(RoundStages& stages, JobShard& shard, Chunk& chunk) {
  if (chunk.operation != wire::RoundOperation::kReduce || chunk.key->sum_block == 0) {
    return plain::Finish(stages, shard, chunk);
  }
  checkpoint::BeforeRound(shard, chunk);
  if (shard.sums != nullptr && shard.sums->IsStreamed(chunk.index)) {
    return FinishStreamed(stages, shard, chunk);
  }
  const std::span<std::byte* const> own = stages.replies.OwnReplies(shard, chunk);
  if (plain::ScreensBeforeReplies(stages, shard, chunk))
    return plain::Apply(stages, shard, chunk, own);
  const auto gradients = aggregate::GatherGradients(chunk, stages.terms);
  return stages.Screen(
      shard, chunk,
      optimize::ApplyFixed(chunk, gradients, own, optimize::StreamsResults(shard, own.size()),
                           shard.long_work));
}

}  // namespace phub::server::fixed_sums
