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

// The public types have the values of the internal ones.
numeric::ElementType Internal(ElementType type) { return static_cast<numeric::ElementType>(type); }
std::size_t SizeOf(ElementType type) { return numeric::ElementBytes(Internal(type)); }

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

// A value made of random bits. Floating-point ones are ordinary, now and then tiny, zero, negative
// zero; and where NaN has one meaning (min and max), NaN or infinite.
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

// Where a NaN is the canonical one, and no update makes another of it.
bool NanHasOneMeaning(const RandomKey& key) {
  const bool extremum = key.operation == Operation::kMin || key.operation == Operation::kMax;
  return extremum && std::holds_alternative<None>(key.rounds[0].optimizer);
}

simd::Reduction ReductionOf(Operation operation) {
  switch (operation) {
    case Operation::kMean: return simd::Reduction::kMean;
    case Operation::kMin: return simd::Reduction::kMin;
    case Operation::kMax: return simd::Reduction::kMax;
    case Operation::kProduct: return simd::Reduction::kProduct;
    case Operation::kSum:
    case Operation::kDefault: break;
  }
  return simd::Reduction::kSum;
}

struct ArgumentsOf {
  simd::OptimizerArguments operator()(const None&) const { return {}; }
  simd::OptimizerArguments operator()(const Sgd& o) const {
    return {.learning_rate = o.learning_rate,
            .weight_decay = o.weight_decay,
            .clip_value = o.clip_value};
  }
  simd::OptimizerArguments operator()(const Momentum& o) const {
    return {.learning_rate = o.learning_rate,
            .weight_decay = o.weight_decay,
            .clip_value = o.clip_value,
            .momentum = o.momentum,
            .dampening = o.dampening};
  }
  simd::OptimizerArguments operator()(const Nesterov& o) const {
    return {.learning_rate = o.learning_rate,
            .weight_decay = o.weight_decay,
            .clip_value = o.clip_value,
            .momentum = o.momentum};
  }
  simd::OptimizerArguments operator()(const Adam& o) const { return Moments(o); }
  simd::OptimizerArguments operator()(const AdamW& o) const { return Moments(o); }
  simd::OptimizerArguments operator()(const Adagrad& o) const {
    return {.learning_rate = o.learning_rate,
            .weight_decay = o.weight_decay,
            .clip_value = o.clip_value,
            .epsilon = o.epsilon,
            .learning_rate_decay = o.learning_rate_decay};
  }
  template <typename O>
  static simd::OptimizerArguments Moments(const O& o) {
    return {.learning_rate = o.learning_rate,
            .weight_decay = o.weight_decay,
            .clip_value = o.clip_value,
            .beta1 = o.beta1,
            .beta2 = o.beta2,
            .epsilon = o.epsilon};
  }
};

// One key's parameters through all rounds, in T, the accumulation type.
template <typename T>
class SerialKey {
 public:
  SerialKey(const RandomJob& job, std::size_t index)
      : job_(job), key_(job.keys[index]), index_(index), count_(key_.element_count) {
    masters_.resize(count_ * SizeOf(key_.type));
    for (std::vector<T>& state : state_) state.resize(count_);
  }

  std::vector<Bytes> Run() {
    std::vector<Bytes> versions = {Reply()};
    for (std::uint64_t iteration = 1; iteration <= job_.iterations; ++iteration) {
      if (key_.rounds[iteration - 1].assigns) {
        masters_ = AssignmentOf(job_, index_, iteration);
      } else {
        Reduce(iteration, versions.back());
      }
      versions.push_back(Reply());
    }
    return versions;
  }

 private:
  void Reduce(std::uint64_t iteration, const Bytes& read) {
    std::vector<Bytes> gradients;
    std::vector<const std::byte*> inputs;
    for (std::uint32_t rank = 0; rank < job_.world_size; ++rank) {
      gradients.push_back(GradientOf(job_, index_, iteration, rank, read));
    }
    for (const Bytes& gradient : gradients) inputs.push_back(gradient.data());
    const Optimizer& optimizer = key_.rounds[iteration - 1].optimizer;
    simd::Round round = {.wire = Internal(key_.gradient_type),
                         .type = Internal(key_.type),
                         .reply = Internal(key_.parameter_type),
                         .reduction = ReductionOf(key_.operation),
                         .optimizer = static_cast<simd::Optimizer>(optimizer.index()),
                         .ranks = job_.world_size,
                         .arguments = std::visit(ArgumentsOf{}, optimizer)};
    round.arguments.step = ++reductions_;
    if (const auto* first = std::get_if<Adagrad>(&key_.rounds[0].optimizer)) {
      round.arguments.initial_accumulator = first->initial_accumulator;
    }
    for (std::size_t i = 0; i < count_; ++i) {
      const T before = reference::Load<T>(Internal(key_.type), masters_.data(), i);
      const T sum = job_.racks > 1 ? SumOf(SumAt(i), inputs, i)
                                   : reference::Folded<T>(round.wire, round.reduction, inputs, i);
      const T after = reference::AfterFold<T>(round, sum, before, &state_[0][i], &state_[1][i]);
      reference::Store<T>(Internal(key_.type), masters_.data(), i, after);
    }
  }

  const RackSum& SumAt(std::size_t element) const {
    return job_.sums[index_][element * SizeOf(key_.type) / job_.chunk_bytes];
  }

  // Of element i, at that rack.
  T SumOf(const RackSum& sum, const std::vector<const std::byte*>& inputs, std::size_t i) const {
    const std::uint32_t part = job_.world_size / job_.racks;
    const auto first = inputs.begin() + sum.rack * part;
    const simd::Reduction reduction = ReductionOf(key_.operation);
    T value =
        reference::Folded<T>(Internal(key_.gradient_type), reduction, {first, first + part}, i);
    for (const RackSum& child : sum.children) {
      value = reference::Combined<T>(reduction, value, SumOf(child, inputs, i));
    }
    return value;
  }

  // What workers get: the masters, in parameter_type.
  Bytes Reply() const {
    if (key_.parameter_type == key_.type) return masters_;
    Bytes reply(count_ * SizeOf(key_.parameter_type));
    if constexpr (std::is_same_v<T, float>) {
      for (std::size_t i = 0; i < count_; ++i) {
        reference::Store<float>(Internal(key_.parameter_type), reply.data(), i,
                                reference::At<float>(masters_.data(), i));
      }
    }
    return reply;
  }

  const RandomJob& job_;
  const RandomKey& key_;
  const std::size_t index_;
  const std::size_t count_;
  std::uint64_t reductions_ = 0;
  Bytes masters_;
  std::array<std::vector<T>, simd::kStatesMax> state_;
};

std::vector<Bytes> ExpectedOf(const RandomJob& job, std::size_t index) {
  switch (job.keys[index].type) {
    case ElementType::kF64: return SerialKey<double>(job, index).Run();
    case ElementType::kI32: return SerialKey<std::int32_t>(job, index).Run();
    case ElementType::kI64: return SerialKey<std::int64_t>(job, index).Run();
    case ElementType::kU8: return SerialKey<std::uint8_t>(job, index).Run();
    default: return SerialKey<float>(job, index).Run();
  }
}

// One of a few values that are not exact in binary, or are zero.
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
    default: return None{};
  }
}

// Other hyper-parameters, but for what is fixed when the key is added.
Optimizer DrawChange(SeededRandom& random, const Optimizer& before) {
  Optimizer after = DrawOptimizer(random, before.index());
  if (auto* adagrad = std::get_if<Adagrad>(&after)) {
    adagrad->initial_accumulator = std::get<Adagrad>(before).initial_accumulator;
  }
  return after;
}

RandomKey DrawKey(SeededRandom& random, const RandomJob& job, std::size_t index) {
  RandomKey key;
  key.name = fmt::format("key{}", index);
  key.type = static_cast<ElementType>(1 + random.Below(7));
  if (random.Chance(1, 3)) key.type = f32;
  key.gradient_type = key.parameter_type = key.type;
  if (key.type == f32) {
    const std::array<ElementType, 3> wires = {f32, f16, bf16};
    key.gradient_type = wires[random.Below(3)];
    key.parameter_type = wires[random.Below(3)];
  }
  const bool floating = numeric::IsFloating(Internal(key.type));
  key.element_count = 1 + random.Below(random.Chance(1, 4) ? 8 : 400);
  const std::size_t optimizer = floating && random.Chance(2, 3) ? 1 + random.Below(6) : 0;
  const std::array<Operation, 5> operations = {Operation::kSum, Operation::kMin, Operation::kMax,
                                               Operation::kProduct, Operation::kMean};
  key.operation = operations[random.Below(floating ? 5 : 4)];
  Optimizer now = DrawOptimizer(random, optimizer);
  for (std::uint32_t iteration = 1; iteration <= job.iterations; ++iteration) {
    RandomRound round;
    if (iteration > 1 && random.Chance(1, 3)) now = DrawChange(random, now);
    round.optimizer = now;
    // With two versions every key has one reduction per iteration, but for the first round.
    round.assigns = job.restart ? iteration == 1 : random.Chance(1, 6);
    round.root = static_cast<std::uint32_t>(random.Below(job.world_size));
    key.rounds.push_back(round);
  }
  return key;
}

}  // namespace

Bytes GradientOf(const RandomJob& job, std::size_t index, std::uint64_t iteration,
                 std::uint32_t rank, const Bytes& parameters) {
  const RandomKey& key = job.keys[index];
  Bytes gradient(key.element_count * SizeOf(key.gradient_type));
  const std::uint64_t hash = Mix(HashOf(parameters), Mix(iteration * 31 + index, rank));
  for (std::size_t i = 0; i < key.element_count; ++i) {
    PutRandom(key.gradient_type, gradient.data(), i, Mix(hash, i), NanHasOneMeaning(key));
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
  const std::uint64_t key_count = 1 + random.Below(6);
  std::uint32_t batch = 0;
  for (std::size_t i = 0; i < key_count; ++i) {
    if (i > 0 && random.Chance(1, 3)) ++batch;
    job.keys.push_back(DrawKey(random, job, i));
    job.keys.back().batch = batch;
  }
  Expect(job);
  return job;
}

void Expect(RandomJob& job) {
  for (std::size_t i = 0; i < job.keys.size(); ++i) job.keys[i].expected = ExpectedOf(job, i);
}

std::string Describe(const RandomJob& job) {
  std::string text = fmt::format(
      "job={} ranks={} racks={} plan={} daemons={} chunk_bytes={} slots={} restart={} "
      "iterations={} keys=[",
      job.name, job.world_size, job.racks, job.plan, job.daemons, job.chunk_bytes,
      job.slots_per_lane, job.restart, job.iterations);
  for (const RandomKey& key : job.keys) {
    std::string rounds;
    for (const RandomRound& round : key.rounds) rounds += round.assigns ? 'a' : 'r';
    text += fmt::format(
        " {}:{}x{}({}>{}) {} {} {}", key.name, key.element_count,
        numeric::ToString(Internal(key.type)), numeric::ToString(Internal(key.gradient_type)),
        numeric::ToString(Internal(key.parameter_type)), simd::ToString(ReductionOf(key.operation)),
        simd::ToString(static_cast<simd::Optimizer>(key.rounds[0].optimizer.index())), rounds);
  }
  return text + " ]";
}

}  // namespace phub::process
