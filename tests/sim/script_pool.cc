// Pooled keys of a simulated job: which rounds they have, and their results.
#include <algorithm>
#include <bit>

#include "tests/sim/script.h"

namespace phub::sim {
namespace {

using numeric::ElementType;
using numeric::Reduction;

float ReduceFloats(Reduction reduction, float a, float b) {
  switch (reduction) {
    case Reduction::kMin: return std::min(a, b);
    case Reduction::kMax: return std::max(a, b);
    case Reduction::kProduct: return a * b;
    default: return a + b;
  }
}

// The bits of both as i32, which wrap.
float ReduceBits(Reduction reduction, float a, float b) {
  const auto x = std::bit_cast<std::uint32_t>(a), y = std::bit_cast<std::uint32_t>(b);
  const auto signed_x = std::bit_cast<std::int32_t>(a), signed_y = std::bit_cast<std::int32_t>(b);
  switch (reduction) {
    case Reduction::kMin: return signed_x < signed_y ? a : b;
    case Reduction::kMax: return signed_x > signed_y ? a : b;
    case Reduction::kProduct: return std::bit_cast<float>(x * y);
    case Reduction::kBitwiseAnd: return std::bit_cast<float>(x & y);
    case Reduction::kBitwiseOr: return std::bit_cast<float>(x | y);
    case Reduction::kBitwiseXor: return std::bit_cast<float>(x ^ y);
    default: return std::bit_cast<float>(x + y);
  }
}

}  // namespace

void MakePooled(SeededRandom& random, std::span<const std::uint32_t> members, KeyScript& key) {
  key.pooled = true;
  key.name += "_pooled";
  key.mean = false;
  key.gradients = GradientKind::kHash;
  std::uint32_t sequence = 0;
  for (RoundScript& round : key.rounds) {
    round.operation = wire::RoundOperation::kPool;
    round.type = random.Chance(1, 3) ? ElementType::kI32 : ElementType::kF32;
    round.pool.elements = 1 + random.Below(key.element_count);
    round.pool.sequence = sequence++;
    constexpr auto kReductions = static_cast<unsigned>(Reduction::kBitwiseXor) + 1;
    round.pool.reduction = static_cast<Reduction>(random.Below(kReductions));
    if (!numeric::IsReductionOf(round.pool.reduction, round.type))
      round.pool.reduction = Reduction::kSum;
    if (!random.Chance(1, 3)) continue;
    round.operation = wire::RoundOperation::kPoolMove;
    round.pool.reduction = {};
    round.root = members[random.Below(members.size())];
  }
}

void DrawPools(SeededRandom random, JobScript& job) {
  constexpr int kDrawnBefore = 8;
  for (int i = 0; i < kDrawnBefore; ++i) (void)random.Below(2);
  if (job.sum_block != 0) return;
  for (KeyScript& key : job.keys) {
    if (!key.collective || key.movement != KeyMovement::kAllReduce || random.Chance(1, 2)) continue;
    if (!key.encoding.none()) continue;
    MakePooled(random, MembersOf(job, key), key);
  }
}

std::vector<float> MovePooled(const RoundScript& round, const std::vector<float>& sent,
                              std::vector<float> parameters) {
  std::copy_n(sent.begin(), round.pool.elements, parameters.begin());
  return parameters;
}

std::vector<float> ReducePooled(const RoundScript& round,
                                const std::vector<std::vector<float>>& gradients,
                                std::vector<float> parameters) {
  const Reduction reduction = round.pool.reduction;
  for (std::size_t i = 0; i < round.pool.elements; ++i) {
    float result = gradients[0][i];
    for (std::size_t rank = 1; rank < gradients.size(); ++rank) {
      result = round.type == ElementType::kI32
                   ? ReduceBits(reduction, result, gradients[rank][i])
                   : ReduceFloats(reduction, result, gradients[rank][i]);
    }
    if (reduction == Reduction::kMean) result = result / static_cast<float>(gradients.size());
    parameters[i] = result;
  }
  return parameters;
}

}  // namespace phub::sim
