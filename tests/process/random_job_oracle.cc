// Computes the expected results of a random job: every key serially, one element at a time.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>

#include "common/base/element_type.h"
#include "tests/process/random_job.h"
#include "tests/support/encoding_reference.h"
#include "tests/support/fixed_sum_reference.h"
#include "tests/support/simd_reference.h"

namespace phub::process {
namespace {

namespace reference = simd::reference;

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
  simd::OptimizerArguments operator()(const RmsProp& o) const { return SquareAverage(o); }
  simd::OptimizerArguments operator()(const RmsPropMomentum& o) const {
    simd::OptimizerArguments arguments = SquareAverage(o);
    arguments.momentum = o.momentum;
    return arguments;
  }
  simd::OptimizerArguments operator()(const RmsPropCentered& o) const { return SquareAverage(o); }
  template <typename O>
  static simd::OptimizerArguments SquareAverage(const O& o) {
    return {.learning_rate = o.learning_rate,
            .weight_decay = o.weight_decay,
            .clip_value = o.clip_value,
            .epsilon = o.epsilon,
            .alpha = o.alpha};
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

// Runs one key through all rounds. A reduction has two steps: compute the sum of the gradients,
// then apply it to the parameters.
class SerialKey {
 public:
  virtual ~SerialKey() = default;
  virtual void Assign(std::uint64_t iteration) = 0;
  virtual void Sum(std::uint64_t iteration) = 0;
  virtual bool SumIsFinite() const = 0;
  // Adds the squares of the sum (divided, for a mean). Returns the argument if the key has no
  // optimizer.
  virtual double AddSquaredNorm(double squared_norm) const = 0;
  virtual void Apply(std::uint64_t iteration, double scale) = 0;
  // The workers' result: the masters, in parameter_type.
  virtual Bytes Reply() const = 0;
};

template <typename T>  // T: the accumulation type
class SerialKeyOf final : public SerialKey {
 public:
  SerialKeyOf(const RandomJob& job, std::size_t index)
      : job_(job), key_(job.keys[index]), index_(index), count_(key_.element_count), sum_(count_) {
    masters_.resize(count_ * SizeOf(key_.type));
    for (std::vector<T>& state : state_) state.resize(count_);
  }

  void Assign(std::uint64_t iteration) override {
    masters_ = AssignmentOf(job_, index_, iteration);
  }

  void Sum(std::uint64_t iteration) override {
    std::vector<Bytes> gradients;
    std::vector<const std::byte*> inputs;
    const Bytes read = Reply();
    for (std::uint32_t rank = 0; rank < job_.world_size; ++rank) {
      gradients.push_back(GradientOf(job_, index_, iteration, rank, read));
      if (!EncodingOf(key_).none()) Transmit(iteration, rank, gradients.back());
    }
    for (const Bytes& gradient : gradients) inputs.push_back(gradient.data());
    const simd::Reduction reduction = ReductionOf(key_.operation);
    for (std::size_t i = 0; i < count_; ++i) {
      sum_[i] = job_.racks > 1
                    ? SumOf(SumAt(i), inputs, i)
                    : reference::Folded<T>(Internal(key_.gradient_type), reduction, inputs, i);
    }
    if constexpr (std::is_same_v<T, float>) {
      if (job_.sum_block != 0) SumInFixedPoint(inputs);
    }
  }

  bool SumIsFinite() const override {
    return std::all_of(sum_.begin(), sum_.end(),
                       [](T value) { return std::isfinite(static_cast<double>(value)); });
  }

  double AddSquaredNorm(double squared_norm) const override {
    if (std::holds_alternative<None>(key_.rounds[0].optimizer)) return squared_norm;
    const std::vector<T> gradient = Gradient();
    const std::size_t chunk = job_.chunk_bytes / SizeOf(key_.type);
    for (std::size_t begin = 0; begin < count_; begin += chunk) {
      squared_norm += reference::SquaredNorm(gradient, begin, std::min(count_, begin + chunk));
    }
    return squared_norm;
  }

  void Apply(std::uint64_t iteration, double scale) override {
    const Optimizer& optimizer = key_.rounds[iteration - 1].optimizer;
    simd::Round round = {.wire = Internal(key_.gradient_type),
                         .type = Internal(key_.type),
                         .reply = Internal(key_.parameter_type),
                         .reduction = simd::Reduction::kSum,  // a mean has been divided already
                         .optimizer = static_cast<simd::Optimizer>(optimizer.index()),
                         .ranks = job_.world_size,
                         .arguments = std::visit(ArgumentsOf{}, optimizer)};
    round.arguments.step = ++reductions_;
    if (const auto* first = std::get_if<Adagrad>(&key_.rounds[0].optimizer)) {
      round.arguments.initial_accumulator = first->initial_accumulator;
    }
    const bool scales = scale != 1.0 && optimizer.index() != 0;
    const std::vector<T> gradient = Gradient();
    for (std::size_t i = 0; i < count_; ++i) {
      const T before = reference::Load<T>(Internal(key_.type), masters_.data(), i);
      const T value =
          scales ? reference::Rounded<T>(gradient[i] * static_cast<T>(scale)) : gradient[i];
      const T after = reference::AfterFold<T>(round, value, before, &state_[0][i], &state_[1][i]);
      reference::Store<T>(Internal(key_.type), masters_.data(), i, after);
    }
  }

  Bytes Reply() const override {
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

 private:
  // Replaces the gradient by what the daemon makes of it.
  void Transmit(std::uint64_t iteration, std::uint32_t rank, Bytes& gradient) {
    residuals_.resize(job_.world_size, std::vector<float>(count_));
    const bool asks = IsIn(job_, RandomTrouble::Kind::kAsks, index_, iteration, rank);
    const bool keeps = key_.compression.error_feedback.value_or(false) && !asks;
    std::vector<float> values(count_);
    std::memcpy(values.data(), gradient.data(), gradient.size());
    values = reference::Transmitted(EncodingOf(key_), values, job_.chunk_bytes / sizeof(float),
                                    keeps ? &residuals_[rank] : nullptr,
                                    static_cast<std::uint32_t>(index_), iteration);
    std::memcpy(gradient.data(), values.data(), gradient.size());
  }

  void SumInFixedPoint(const std::vector<const std::byte*>& inputs) {
    std::vector<std::vector<float>> gradients;
    for (const std::byte* const input : inputs) {
      std::vector<float>& values = gradients.emplace_back(count_);
      for (std::size_t i = 0; i < count_; ++i) {
        values[i] = reference::Load<float>(Internal(key_.gradient_type), input, i);
      }
    }
    const std::size_t chunk = job_.chunk_bytes / SizeOf(key_.type);
    std::vector<std::size_t> sizes;
    for (std::size_t begin = 0; begin < count_; begin += chunk) {
      sizes.push_back(std::min(chunk, count_ - begin));
    }
    sum_ = oracle::SumInFixedPoint(gradients, job_.sum_block, sizes);
  }

  std::vector<T> Gradient() const {
    std::vector<T> gradient = sum_;
    if (key_.operation != Operation::kMean) return gradient;
    for (T& value : gradient)
      value = reference::Rounded<T>(value / static_cast<T>(job_.world_size));
    return gradient;
  }

  const oracle::RackSum& SumAt(std::size_t element) const {
    return job_.sums[index_][element * SizeOf(key_.type) / job_.chunk_bytes];
  }

  // Sums element i across racks.
  T SumOf(const oracle::RackSum& sum, const std::vector<const std::byte*>& inputs,
          std::size_t i) const {
    const simd::Reduction reduction = ReductionOf(key_.operation);
    return oracle::Fold<T>(
        sum, [&](std::uint32_t rack) { return OwnSumOf(rack, inputs, i); },
        [&](T a, T b) { return reference::Combined<T>(reduction, a, b); });
  }
  T OwnSumOf(std::uint32_t rack, const std::vector<const std::byte*>& inputs, std::size_t i) const {
    const std::uint32_t part = job_.world_size / job_.racks;
    const auto first = inputs.begin() + rack * part;
    return reference::Folded<T>(Internal(key_.gradient_type), ReductionOf(key_.operation),
                                {first, first + part}, i);
  }

  const RandomJob& job_;
  const RandomKey& key_;
  const std::size_t index_;
  const std::size_t count_;
  std::uint64_t reductions_ = 0;
  std::vector<T> sum_;
  std::vector<std::vector<float>> residuals_;  // [rank], with error feedback
  Bytes masters_;
  std::array<std::vector<T>, simd::kStatesMax> state_;
};

std::unique_ptr<SerialKey> MakeSerialKey(const RandomJob& job, std::size_t index) {
  switch (job.keys[index].type) {
    case ElementType::kF64: return std::make_unique<SerialKeyOf<double>>(job, index);
    case ElementType::kI32: return std::make_unique<SerialKeyOf<std::int32_t>>(job, index);
    case ElementType::kI64: return std::make_unique<SerialKeyOf<std::int64_t>>(job, index);
    case ElementType::kU8: return std::make_unique<SerialKeyOf<std::uint8_t>>(job, index);
    default: return std::make_unique<SerialKeyOf<float>>(job, index);
  }
}

// What happens to a summed iteration.
struct Decision {
  bool skip = false;
  double scale = 1.0;
};

Decision DecideSerially(const RandomJob& job, std::uint64_t iteration,
                        const std::vector<std::unique_ptr<SerialKey>>& keys) {
  if (!job.apply_iteration) return {};
  double squared_norm = 0.0;
  bool finite = true;
  for (const auto& key : keys) {
    finite &= key->SumIsFinite();
    if (job.clip_norm > 0.0) squared_norm = key->AddSquaredNorm(squared_norm);
  }
  const double norm = std::sqrt(squared_norm);
  finite &= std::isfinite(norm);
  const bool asked = job.troubles[iteration - 1].kind == RandomTrouble::Kind::kAsks;
  Decision decision{.skip = asked || (job.skip_nonfinite && !finite)};
  if (!decision.skip && finite && job.clip_norm > 0.0 && norm > job.clip_norm) {
    decision.scale = job.clip_norm / norm;
  }
  return decision;
}

}  // namespace

void Expect(RandomJob& job) {
  std::vector<std::unique_ptr<SerialKey>> keys;
  for (std::size_t i = 0; i < job.keys.size(); ++i) keys.push_back(MakeSerialKey(job, i));
  const auto keep = [&] {
    for (std::size_t i = 0; i < keys.size(); ++i) job.keys[i].expected.push_back(keys[i]->Reply());
  };
  for (RandomKey& key : job.keys) key.expected.clear();
  job.skipped.assign(1, 0);
  keep();
  for (std::uint64_t iteration = 1; iteration <= job.iterations; ++iteration) {
    bool reduces = false;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const bool assigns = job.keys[i].rounds[iteration - 1].assigns;
      assigns ? keys[i]->Assign(iteration) : keys[i]->Sum(iteration);
      reduces |= !assigns;
    }
    const Decision decision = reduces ? DecideSerially(job, iteration, keys) : Decision{};
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (decision.skip || job.keys[i].rounds[iteration - 1].assigns) continue;
      keys[i]->Apply(iteration, decision.scale);
    }
    job.skipped.push_back(job.skipped.back() + (decision.skip ? 1 : 0));
    keep();
  }
}

}  // namespace phub::process
