#include "tests/process/random_job.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstring>

#include "common/base/element_type.h"
#include "tests/support/simd_reference.h"

namespace phub::process {
namespace {

namespace reference = simd::reference;

std::uint64_t Mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t z = a * 0x9e3779b97f4a7c15u ^ (b + 0x7f4a7c159e3779b9u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

std::uint64_t HashOf(const Bytes& bytes) {
  std::uint64_t hash = bytes.size();
  for (const std::byte byte : bytes) hash = Mix(hash, std::to_integer<std::uint64_t>(byte));
  return hash;
}

// A value made from random bits. Floating-point values are ordinary, sometimes tiny, zero or
// negative zero. They may be NaN or infinite if NaN has one meaning (min and max).
double RealOf(std::uint64_t bits, bool with_nan) {
  const double unit = static_cast<double>(bits >> 12) * 0x1p-52;  // [0, 1)
  const double sign = (bits & 1) != 0 ? -1.0 : 1.0;
  switch (bits >> 1 & 63) {
    case 0: return sign * 0.0;
    case 1: return sign * unit * 0x1p-140;
    case 2: return sign * unit * 2.0;
    case 3: return with_nan ? sign * INFINITY : sign * unit;
    case 4: return with_nan ? NAN : sign * unit;
    default: return sign * (unit + 0x1p-30);
  }
}

void PutRandom(ElementType type, std::byte* array, std::size_t i, std::uint64_t bits,
               bool with_nan) {
  switch (type) {
    case ElementType::kF64: return reference::Put(array, i, RealOf(bits, with_nan));
    case ElementType::kF32:
    case ElementType::kF16:
    case ElementType::kBf16:
      return reference::Store(Internal(type), array, i, static_cast<float>(RealOf(bits, with_nan)));
    case ElementType::kI32: return reference::Put(array, i, static_cast<std::int32_t>(bits >> 16));
    case ElementType::kI64: return reference::Put(array, i, static_cast<std::int64_t>(bits));
    case ElementType::kU8: return reference::Put(array, i, static_cast<std::uint8_t>(bits >> 16));
  }
}

// True if results contain only the canonical NaN, and no update changes it.
bool NanHasOneMeaning(const RandomKey& key) {
  const bool extremum = key.operation == Operation::kMin || key.operation == Operation::kMax;
  return extremum && std::holds_alternative<None>(key.rounds[0].optimizer);
}

// Draws one of a few values. Some are zero or not exact in binary.
double Draw(SeededRandom& random, std::initializer_list<double> values) {
  return values.begin()[random.Below(values.size())];
}

Optimizer DrawOptimizer(SeededRandom& random, std::size_t kind) {
  const double rate = Draw(random, {0.1, 0.01, 1e-3, 0.7});
  const double decay = Draw(random, {0.0, 0.0, 0.01, 1e-4});
  const double clip = Draw(random, {0.0, 0.0, 0.5});
  switch (kind) {
    case 1: return Sgd{rate, decay, clip};
    case 2:
      return Momentum{rate, Draw(random, {0.9, 0.0, 0.99}), Draw(random, {0.0, 0.25}), decay, clip};
    case 3: return Nesterov{rate, Draw(random, {0.9, 0.99}), decay, clip};
    case 4: return Adam{rate, 0.9, Draw(random, {0.999, 0.99}), 1e-8, decay, clip};
    case 5: return AdamW{rate, Draw(random, {0.9, 0.8}), 0.999, 1e-8, decay, clip};
    case 6:
      return Adagrad{rate, Draw(random, {0.0, 0.01}), decay, Draw(random, {0.0, 0.1}), 1e-10, clip};
    case 7: return RmsProp{rate, Draw(random, {0.99, 0.9}), 1e-8, decay, clip};
    case 8: return RmsPropMomentum{rate, 0.99, 1e-8, Draw(random, {0.9, 0.0}), decay, clip};
    case 9: return RmsPropCentered{rate, Draw(random, {0.99, 0.9}), 1e-6, decay, clip};
    default: return None{};
  }
}

// Changes the hyper-parameters, except those that are fixed when the key is added.
Optimizer DrawChange(SeededRandom& random, const Optimizer& before) {
  Optimizer after = DrawOptimizer(random, before.index());
  if (auto* adagrad = std::get_if<Adagrad>(&after)) {
    adagrad->initial_accumulator = std::get<Adagrad>(before).initial_accumulator;
  }
  return after;
}

// A type that a job with sum=fixed may have.
ElementType SummedFixed(ElementType type) {
  switch (type) {
    case ElementType::kF64: return f32;
    case ElementType::kI64:
    case ElementType::kU8: return ElementType::kI32;
    default: return type;
  }
}

// Takes a copy of the generator, so that the seed's other decisions do not change.
void DrawSum(SeededRandom random, RandomJob& job) {
  constexpr std::array<std::uint32_t, 5> kBlocks = {16, 24, 37, 64, 350};
  if (random.Chance(1, 4)) job.sum_block = kBlocks[random.Below(kBlocks.size())];
}

// Takes a copy of the generator, likewise.
void DrawCompression(SeededRandom random, const RandomJob& job, RandomKey& key) {
  constexpr int kDrawnByOthers = 5;
  for (int i = 0; i < kDrawnByOthers; ++i) (void)random.Below(2);
  const bool sums = key.operation == Operation::kSum || key.operation == Operation::kMean;
  if (key.type != f32 || !sums || job.sum_block != 0 || random.Chance(1, 2)) return;
  key.gradient_type = f32;
  key.compression.kind = static_cast<Compression::Kind>(job.restart ? 1 : 1 + random.Below(3));
  key.compression.error_feedback = !job.restart && random.Chance(1, 2);
  if (key.compression.kind == Compression::Kind::kInt8) return;
  key.compression.kept = Draw(random, {1e-6, 0.03, 0.25, 0.5});
}

RandomKey DrawKey(SeededRandom& random, const RandomJob& job, std::size_t index) {
  RandomKey key;
  key.name = fmt::format("key{}", index);
  key.type = static_cast<ElementType>(1 + random.Below(7));
  if (random.Chance(1, 3)) key.type = f32;
  if (job.sum_block != 0) key.type = SummedFixed(key.type);
  key.gradient_type = key.parameter_type = key.type;
  if (key.type == f32) {
    const std::array<ElementType, 3> wires = {f32, f16, bf16};
    key.gradient_type = wires[random.Below(3)];
    key.parameter_type = wires[random.Below(3)];
  }
  const bool floating = numeric::IsFloating(Internal(key.type));
  key.element_count = 1 + random.Below(random.Chance(1, 4) ? 8 : 400);
  const std::size_t optimizer =
      floating && random.Chance(2, 3) ? 1 + random.Below(optimizer::Descriptors().size() - 1) : 0;
  constexpr auto kOperations = static_cast<unsigned>(Operation::kBitwiseXor);
  do {
    key.operation = static_cast<Operation>(1 + random.Below(kOperations));
  } while (!numeric::IsReductionOf(ReductionOf(key.operation), Internal(key.type)));
  const bool sums = key.operation == Operation::kSum || key.operation == Operation::kMean;
  if (job.sum_block != 0 && !sums) key.operation = Operation::kSum;
  Optimizer now = DrawOptimizer(random, optimizer);
  for (std::uint32_t iteration = 1; iteration <= job.iterations; ++iteration) {
    RandomRound round;
    if (iteration > 1 && random.Chance(1, 3)) now = DrawChange(random, now);
    round.optimizer = now;
    // With two versions, every key has one reduction per iteration except in the first round.
    round.assigns = job.restart ? iteration == 1 : random.Chance(1, 6);
    round.root = static_cast<std::uint32_t>(random.Below(job.world_size));
    if (job.apply_iteration && index > 0) {  // an iteration has all keys or none
      round.assigns = job.keys[0].rounds[iteration - 1].assigns;
    }
    key.rounds.push_back(round);
  }
  DrawCompression(random, job, key);
  return key;
}

// REQUIRES: the keys are drawn.
void DrawTroubles(SeededRandom& random, RandomJob& job) {
  for (std::uint32_t iteration = 1; iteration <= job.iterations; ++iteration) {
    RandomTrouble& trouble = job.troubles.emplace_back();
    trouble.rank = static_cast<std::uint32_t>(random.Below(job.world_size));
    trouble.key = static_cast<std::uint32_t>(random.Below(job.keys.size()));
    if (job.keys[0].rounds[iteration - 1].assigns) continue;
    if (random.Chance(1, 8)) trouble.kind = RandomTrouble::Kind::kAsks;
    // Which NaN an operation on a NaN returns depends on the machine. So NaNs are drawn only where
    // the iteration is skipped.
    if (job.skip_nonfinite && random.Chance(1, 6)) trouble.kind = RandomTrouble::Kind::kNonFinite;
  }
}

}  // namespace

simd::Reduction ReductionOf(Operation operation) {
  switch (operation) {
    case Operation::kMean: return simd::Reduction::kMean;
    case Operation::kMin: return simd::Reduction::kMin;
    case Operation::kMax: return simd::Reduction::kMax;
    case Operation::kProduct: return simd::Reduction::kProduct;
    case Operation::kBitwiseAnd: return simd::Reduction::kBitwiseAnd;
    case Operation::kBitwiseOr: return simd::Reduction::kBitwiseOr;
    case Operation::kBitwiseXor: return simd::Reduction::kBitwiseXor;
    case Operation::kSum:
    case Operation::kDefault: break;
  }
  return simd::Reduction::kSum;
}

numeric::GradientEncoding EncodingOf(const RandomKey& key) {
  return {static_cast<numeric::Encoding>(key.compression.kind),
          static_cast<std::uint32_t>(std::lround(key.compression.kept * 1e6))};
}

Bytes GradientOf(const RandomJob& job, std::size_t index, std::uint64_t iteration,
                 std::uint32_t rank, const Bytes& parameters) {
  const RandomKey& key = job.keys[index];
  Bytes gradient(key.element_count * SizeOf(key.gradient_type));
  const std::uint64_t hash = Mix(HashOf(parameters), Mix(iteration * 31 + index, rank));
  for (std::size_t i = 0; i < key.element_count; ++i) {
    PutRandom(key.gradient_type, gradient.data(), i, Mix(hash, i), NanHasOneMeaning(key));
  }
  const bool spoilt = IsIn(job, RandomTrouble::Kind::kNonFinite, index, iteration, rank);
  if (spoilt && numeric::IsFloating(Internal(key.type))) {
    const double value = hash % 2 == 0 ? NAN : INFINITY;
    const std::size_t at = hash % key.element_count;
    if (key.type == ElementType::kF64) {
      reference::Put(gradient.data(), at, value);
    } else {
      reference::Store<float>(Internal(key.gradient_type), gradient.data(), at,
                              static_cast<float>(value));
    }
  }
  return gradient;
}

Bytes AssignmentOf(const RandomJob& job, std::size_t index, std::uint64_t iteration) {
  const RandomKey& key = job.keys[index];
  Bytes values(key.element_count * SizeOf(key.type));
  for (std::size_t i = 0; i < key.element_count; ++i) {
    PutRandom(key.type, values.data(), i, Mix(Mix(job.seed + index, iteration), i), false);
  }
  return values;
}

RandomJob DrawJob(std::uint64_t seed) {
  SeededRandom random(seed);
  RandomJob job;
  job.seed = seed;
  job.name = fmt::format("random{}", seed);
  job.world_size = static_cast<std::uint32_t>(1 + random.Below(random.Chance(1, 3) ? 16 : 5));
  job.chunk_bytes = static_cast<std::uint32_t>(256 + 64 * random.Below(8));
  job.slots_per_lane = static_cast<std::uint32_t>(random.Chance(1, 2) ? 1 : 1 + random.Below(6));
  job.iterations = static_cast<std::uint32_t>(2 + random.Below(6));
  job.daemons = static_cast<std::uint32_t>(1 + random.Below(3));
  job.restart = random.Chance(1, 4);
  job.apply_iteration = !job.restart && random.Chance(1, 3);
  if (job.apply_iteration) {
    job.clip_norm = Draw(random, {0.0, 0.5, 7.0, 40.0, 1e300});
    job.skip_nonfinite = random.Chance(2, 3);
  }
  DrawSum(random, job);
  const std::uint64_t key_count = 1 + random.Below(6);
  std::uint32_t batch = 0;
  for (std::size_t i = 0; i < key_count; ++i) {
    if (i > 0 && random.Chance(1, 3)) ++batch;
    job.keys.push_back(DrawKey(random, job, i));
    job.keys.back().batch = batch;
  }
  if (job.apply_iteration) DrawTroubles(random, job);
  Expect(job);
  return job;
}

bool IsIn(const RandomJob& job, RandomTrouble::Kind kind, std::size_t key, std::uint64_t iteration,
          std::uint32_t rank) {
  if (job.troubles.empty()) return false;
  const RandomTrouble& trouble = job.troubles[iteration - 1];
  return trouble.kind == kind && trouble.key == key && trouble.rank == rank;
}

std::string Describe(const RandomJob& job) {
  std::string text = fmt::format(
      "job={} ranks={} racks={} plan={} daemons={} chunk_bytes={} slots={} restart={} "
      "apply_iteration={} clip_norm={} skip_nonfinite={} sum_block={} iterations={} keys=[",
      job.name, job.world_size, job.racks, job.plan, job.daemons, job.chunk_bytes,
      job.slots_per_lane, job.restart, job.apply_iteration, job.clip_norm, job.skip_nonfinite,
      job.sum_block, job.iterations);
  for (const RandomKey& key : job.keys) {
    std::string rounds;
    for (const RandomRound& round : key.rounds) rounds += round.assigns ? 'a' : 'r';
    text += fmt::format(
        " {}:{}x{}({}>{}) {}@{}{} {} {} {}", key.name, key.element_count,
        numeric::ToString(Internal(key.type)), numeric::ToString(Internal(key.gradient_type)),
        numeric::ToString(Internal(key.parameter_type)), numeric::ToString(EncodingOf(key).kind),
        key.compression.kept, key.compression.error_feedback.value_or(false) ? " feedback" : "",
        simd::ToString(ReductionOf(key.operation)),
        simd::ToString(static_cast<simd::Optimizer>(key.rounds[0].optimizer.index())), rounds);
  }
  return text + " ]";
}

}  // namespace phub::process
