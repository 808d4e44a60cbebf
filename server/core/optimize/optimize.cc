#include "server/core/optimize/optimize.h"

#include <array>
#include <cstring>

#include "common/base/check.h"
#include "server/core/kernels_in_parts.h"
#include "server/core/on_core_loop.h"

namespace phub::server::optimize {
namespace {

using wire::RoundOperation;

// Parameters of a job on one core loop. Together with each rank's gradients and results, this is
// more than an L3 cache keeps over an iteration.
constexpr std::uint32_t kStreamedBytes = 8 * 1024 * 1024;

optimizer::OptimizerArguments ArgumentsOf(const Chunk& chunk) {
  const ShardKey& key = *chunk.key;
  const ShardKey::HyperParameterSet& set =
      key.hyper_parameters[chunk.hyper_version.value % kHyperVersionsPerKey];
  PHUB_CHECK(set.version == chunk.hyper_version, "key={} record={}", key.key.value,
             chunk.hyper_version.value);
  return optimizer::ArgumentsOf(set.values, key.first_values, chunk.reductions + 1);
}

simd::Round RoundOf(const Chunk& chunk, simd::Reduction reduction, std::uint32_t world_size) {
  const ShardKey& key = *chunk.key;
  const bool pooled = chunk.is_pooled();
  return {.wire = chunk.gradient_type(),
          .type = pooled ? chunk.payload_type : key.type,
          .reply = pooled ? chunk.payload_type : key.parameter_type,
          .reduction = reduction,
          .optimizer = key.optimizer,
          .ranks = world_size,
          .arguments = ArgumentsOf(chunk),
          .encoded = chunk.Encoded()};
}

// Calls apply(memory) with the memory of the chunk's next version.
template <typename Apply>
bool WithMemoryOf(Chunk& chunk, std::span<std::byte* const> own_replies, bool streams,
                  Apply&& apply) {
  // Masters are updated in place, and the parameters are one more copy of the result.
  std::array<std::byte*, kRanksMax + 1> replies;
  std::size_t reply_count = 0;
  if (chunk.masters != nullptr) replies[reply_count++] = chunk.NextParameters();
  for (std::byte* const reply : own_replies) replies[reply_count++] = reply;
  std::byte* const from =
      chunk.masters != nullptr ? chunk.masters : chunk.Parameters(chunk.applied);
  std::byte* const to = chunk.masters != nullptr ? chunk.masters : chunk.NextParameters();
  return apply(simd::RoundMemory{.parameters = from,
                                 .next_parameters = to,
                                 .state = chunk.state,
                                 .replies = {replies.data(), reply_count},
                                 .streams_results = streams});
}

bool Reduce(Chunk& chunk, simd::Reduction reduction, const simd::Terms& terms,
            std::uint32_t world_size, std::span<std::byte* const> own_replies, bool streams,
            LongWork* work) {
  const simd::Round round = RoundOf(chunk, reduction, world_size);
  return WithMemoryOf(chunk, own_replies, streams, [&](const simd::RoundMemory& memory) {
    return ApplyInParts(work, round, terms, chunk.elements(), memory);
  });
}

// Reads the payload only once, because a worker may be writing to it.
void Assign(Chunk& chunk, const std::byte* payload) {
  const ShardKey& key = *chunk.key;
  std::byte* const next = chunk.NextParameters();
  if (chunk.masters == nullptr) {
    std::memcpy(next, payload, chunk.next_reply_bytes());
    return;
  }
  simd::Convert(chunk.payload_type, payload, key.type, chunk.masters, chunk.element_count);
  simd::Convert(key.type, chunk.masters, key.parameter_type, next, chunk.element_count);
}

bool IsUpdated(const Chunk& chunk) { return chunk.key->optimizer != Optimizer::kNone; }

}  // namespace

bool StreamsResults(const JobShard& shard, std::size_t own_count) {
  return own_count == shard.config.world_size &&
         shard.chunk_count > kStreamedBytes / shard.config.chunk_bytes;
}

void CountMemory(const JobShard& shard, const Chunk& chunk, const simd::Terms& terms,
                 std::size_t own_count) {
  const ShardKey& key = *chunk.key;
  const bool has_masters = chunk.masters != nullptr;
  const std::uint64_t own = own_count * chunk.next_reply_bytes();
  const std::uint64_t kept = chunk.Bytes(key.type);
  if (wire::HasRoot(chunk.operation)) {
    // See Assign(); what it writes is read for the next copy.
    const std::uint64_t next = chunk.next_reply_bytes();
    const std::uint64_t payload = chunk.Bytes(chunk.payload_type);
    shard.CountMemory(MemoryWork::kCopies, {.read = payload + (has_masters ? kept : 0) + own,
                                            .written = next + (has_masters ? kept : 0) + own});
    return;
  }
  const std::uint64_t sum = chunk.Bytes(numeric::AccumulationType(key.type));
  const std::uint64_t state = simd::StateCount(key.optimizer) * sum;
  shard.CountMemory(
      MemoryWork::kUpdate,
      {.read = (terms.folded != nullptr ? sum : 0) + terms.inputs.size() * chunk.GradientBytes() +
               (IsUpdated(chunk) ? kept : 0) + state,
       .written = kept + (has_masters ? chunk.next_reply_bytes() : 0) + state + own});
}

double MakeGradient(Chunk& chunk, std::uint32_t world_size) {
  PHUB_ON_CORE_LOOP();
  if (!IsUpdated(chunk)) return 0.0;
  const ShardKey& key = *chunk.key;
  const std::uint32_t divisor = key.reduction == Reduction::kMean ? world_size : 1;
  return simd::DivideAndSquare(numeric::AccumulationType(key.type), divisor, chunk.accumulator,
                               chunk.element_count);
}

void ApplySummed(Chunk& chunk, std::uint32_t world_size, bool norms, double scale,
                 std::span<std::byte* const> own_replies, bool streams, LongWork* work) {
  PHUB_ON_CORE_LOOP();
  const ShardKey& key = *chunk.key;
  const bool is_gradient = norms && IsUpdated(chunk);
  if (is_gradient && scale != 1.0) {
    simd::Scale(numeric::AccumulationType(key.type), scale, chunk.accumulator, chunk.element_count);
  }
  const simd::Reduction reduction = is_gradient ? simd::Reduction::kSum : key.reduction;
  Reduce(chunk, reduction, {.folded = chunk.accumulator, .inputs = {}}, world_size, own_replies,
         streams, work);
}

bool ApplyFixed(Chunk& chunk, std::span<const std::byte* const> gradients,
                std::span<std::byte* const> own_replies, bool streams, LongWork* work) {
  PHUB_ON_CORE_LOOP();
  const simd::Round round =
      RoundOf(chunk, chunk.key->reduction, static_cast<std::uint32_t>(gradients.size()));
  return WithMemoryOf(chunk, own_replies, streams, [&](const simd::RoundMemory& memory) {
    return ApplyFixedInParts(work, round, chunk.key->sum_block, gradients, chunk.element_count,
                             memory);
  });
}

bool ApplyRound(Chunk& chunk, const simd::Terms& terms, std::uint32_t world_size,
                std::span<std::byte* const> own_replies, bool streams, LongWork* work) {
  PHUB_ON_CORE_LOOP();
  if (chunk.operation == RoundOperation::kReduce || chunk.operation == RoundOperation::kPool) {
    return Reduce(chunk, chunk.reduction(), terms, world_size, own_replies, streams, work);
  }
  PHUB_CHECK(wire::HasRoot(chunk.operation) && terms.inputs.size() == 1 && terms.folded == nullptr);
  Assign(chunk, terms.inputs[0]);
  for (std::byte* const reply : own_replies) {
    if (chunk.masters == nullptr && reply == terms.inputs[0]) continue;  // the sender's own part
    std::memcpy(reply, chunk.NextParameters(), chunk.next_reply_bytes());
    if (work != nullptr) work->Note(chunk.next_reply_bytes());
  }
  return false;
}

}  // namespace phub::server::optimize
