#include "server/optimize/optimize.h"

#include <cstring>

#include "common/base/check.h"
#include "common/simd/kernels.h"

namespace phub::server::optimize {
namespace {

void Reduce(Chunk& chunk, std::span<const float* const> terms, float divisor) {
  const KeyState& key = *chunk.key;
  const KeyState::Record& record = key.records[chunk.record.value % kRecordsPerKey];
  PHUB_CHECK(record.version == chunk.record, "key={} record={}", key.key.value, chunk.record.value);
  if (key.optimizer == Optimizer::kNone) {
    if (divisor == 0.0f) {
      simd::Sum(terms, chunk.element_count, chunk.parameters);
    } else {
      simd::SumMean(terms, chunk.element_count, divisor, chunk.parameters);
    }
    return;
  }
  const simd::SgdArguments arguments = {
      .divisor = divisor,
      .learning_rate = record.values.learning_rate,
      .momentum = record.values.momentum,
      .dampening = record.values.dampening,
      .weight_decay = record.values.weight_decay,
      .first_step = chunk.optimizer_steps == 0,
  };
  if (key.optimizer == Optimizer::kMomentum) {
    simd::SumMomentum(terms, chunk.element_count, arguments, chunk.parameters, chunk.momentum);
  } else {
    simd::SumSgd(terms, chunk.element_count, arguments, chunk.parameters);
  }
  ++chunk.optimizer_steps;
}

}  // namespace

void ApplyRound(Chunk& chunk, std::span<const float* const> terms, std::uint32_t world_size) {
  if (chunk.operation == wire::RoundOperation::kAssign) {
    PHUB_CHECK(terms.size() == 1);
    std::memcpy(chunk.parameters, terms[0], chunk.bytes());
  } else {
    const bool mean = chunk.key->reduction == Reduction::kMean;
    Reduce(chunk, terms, mean ? static_cast<float>(world_size) : 0.0f);
  }
  ++chunk.applied.value;
}

}  // namespace phub::server::optimize
