// Computes the expected results of a script's job: every key serially, one element at a time.
#include <algorithm>
#include <cmath>

#include "tests/sim/script.h"
#include "tests/support/encoding_reference.h"
#include "tests/support/simd_reference.h"

namespace phub::sim {
namespace {

simd::OptimizerArguments ArgumentsOf(const wire::HyperParameters& hyper, std::uint64_t step) {
  simd::OptimizerArguments arguments;
  arguments.learning_rate = hyper.learning_rate;
  arguments.weight_decay = hyper.weight_decay;
  arguments.momentum = hyper.momentum;
  arguments.dampening = hyper.dampening;
  arguments.beta1 = hyper.beta1;
  arguments.beta2 = hyper.beta2;
  arguments.epsilon = hyper.epsilon;
  arguments.learning_rate_decay = hyper.learning_rate_decay;
  arguments.alpha = hyper.alpha;
  arguments.step = step;
  return arguments;
}

// The state of one key.
struct KeyState {
  std::vector<float> parameters;
  std::vector<std::vector<float>> states;
  std::uint64_t reductions = 0;
};

// Sums an element of the gradients of those members that are in the rack. `terms` is indexed by the
// ranks that push the key.
float SumOfRack(const JobScript& job, const std::vector<std::uint32_t>& members, std::uint32_t rack,
                const std::vector<std::vector<float>>& terms, std::size_t element) {
  const std::uint32_t in_rack = job.world_size / job.racks;
  float sum = 0.0f;
  bool begun = false;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i] / in_rack != rack) continue;
    sum = begun ? sum + terms[i][element] : terms[i][element];
    begun = true;
  }
  return sum;
}

// What every rank of the key pushes, as the daemon decodes it, given the parameters of the whole
// key.
std::vector<std::vector<float>> GradientsOf(const JobScript& job, std::uint32_t key_index,
                                            std::uint64_t iteration,
                                            const std::vector<float>& parameters) {
  std::vector<std::vector<float>> gradients;
  for (const std::uint32_t rank : MembersOf(job, job.keys[key_index])) {
    const auto read = Pick(parameters, ReceivedBy(job, job.keys[key_index], rank));
    gradients.push_back(GradientOf(job, key_index, iteration, rank, read));
    const numeric::GradientEncoding& encoding = job.keys[key_index].encoding;
    if (encoding.none()) continue;
    gradients.back() =
        simd::reference::Transmitted(encoding, gradients.back(), job.chunk_bytes / sizeof(float),
                                     /*residual=*/nullptr, key_index, iteration);
  }
  return gradients;
}

// The parts of each rank, from that rank.
std::vector<float> MoveSerially(const JobScript& job, std::uint32_t key_index,
                                std::uint64_t iteration, const std::vector<float>& parameters) {
  const KeyScript& key = job.keys[key_index];
  const std::vector<std::vector<float>> pushed = GradientsOf(job, key_index, iteration, parameters);
  std::vector<float> result(key.element_count);
  for (std::uint32_t rank = 0; rank < job.world_size; ++rank) {
    for (const std::uint32_t element : PushedBy(job, key, rank)) {
      result[element] = pushed[rank][element];
    }
  }
  return result;
}

// Sums a round's gradients serially, with each operation rounded separately.
std::vector<float> SumSerially(const JobScript& job, std::uint32_t key_index,
                               std::uint64_t iteration, const std::vector<float>& parameters) {
  const KeyScript& key = job.keys[key_index];
  const std::vector<std::vector<float>> terms = GradientsOf(job, key_index, iteration, parameters);
  const std::vector<std::uint32_t> members = MembersOf(job, key);
  const std::uint32_t in_rack = job.world_size / job.racks;
  std::vector<float> sum(key.element_count);
  const std::size_t in_chunk = job.chunk_bytes / sizeof(float);
  for (std::size_t i = 0; i < sum.size(); ++i) {
    const auto of_rack = [&](std::uint32_t rack) {
      return SumOfRack(job, members, rack, terms, i);
    };
    const bool in_one = job.racks == 1 || job.sums[key_index].empty();
    sum[i] = in_one ? of_rack(members.front() / in_rack)
                    : oracle::Fold<float>(job.sums[key_index][i / in_chunk], of_rack,
                                          [](float a, float b) { return a + b; });
  }
  if (job.sum_block != 0) sum = SumInFixedPoint(job, key, terms);
  if (!key.mean) return sum;
  for (float& value : sum) value = value / static_cast<float>(terms.size());
  return sum;
}

void UpdateSerially(const KeyScript& key, const RoundScript& round,
                    const std::vector<float>& gradient, KeyState& state) {
  const simd::OptimizerArguments arguments =
      ArgumentsOf(round.hyper_parameters, ++state.reductions);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    if (key.optimizer == simd::Optimizer::kNone) {
      state.parameters[i] = gradient[i];
      continue;
    }
    state.parameters[i] =
        simd::reference::Updated(key.optimizer, arguments, gradient[i], state.parameters[i],
                                 &state.states[0][i], &state.states[1][i]);
  }
}

// The outcome of an iteration that is applied as a whole.
struct Decision {
  bool skip = false;
  double scale = 1.0;
};

Decision DecideSerially(const JobScript& job, std::uint64_t iteration,
                        const std::vector<std::vector<float>>& gradients) {
  double squared_norm = 0.0;
  bool finite = true;
  for (std::size_t index = 0; index < job.keys.size(); ++index) {
    if (job.keys[index].collective) continue;
    const std::vector<float>& gradient = gradients[index];
    for (const float value : gradient) finite &= std::isfinite(value);
    if (job.keys[index].optimizer == simd::Optimizer::kNone) continue;
    const std::size_t chunk = job.chunk_bytes / sizeof(float);
    for (std::size_t begin = 0; begin < gradient.size(); begin += chunk) {
      squared_norm +=
          simd::reference::SquaredNorm(gradient, begin, std::min(gradient.size(), begin + chunk));
    }
  }
  const bool asked = job.troubles[iteration - 1].kind == TroubleScript::Kind::kAsks;
  const double norm = std::sqrt(squared_norm);
  Decision decision{.skip = asked || (job.skip_nonfinite && !finite)};
  if (!decision.skip && job.clip_norm > 0.0 && norm > job.clip_norm) {
    decision.scale = job.clip_norm / norm;
  }
  return decision;
}

void ApplyRound(JobScript& job, std::uint32_t index, std::uint64_t iteration,
                const Decision& decision, std::vector<float> gradient, KeyState& state) {
  KeyScript& key = job.keys[index];
  RoundScript& round = key.rounds[iteration - 1];
  if (round.operation == wire::RoundOperation::kAssign) {
    state.parameters = BroadcastOf(job, index, iteration);
    return;
  }
  if (round.operation == wire::RoundOperation::kMove) {
    state.parameters = MoveSerially(job, index, iteration, state.parameters);
    return;
  }
  const std::vector<float> before = state.parameters;
  if (round.operation == wire::RoundOperation::kPoolMove) {
    state.parameters =
        MovePooled(round, GradientOf(job, index, iteration, round.root, before), before);
    return;
  }
  if (round.operation == wire::RoundOperation::kPool) {
    state.parameters = ReducePooled(round, GradientsOf(job, index, iteration, before), before);
    return;
  }
  round.skipped = decision.skip && !key.collective;
  if (round.skipped) return;
  if (decision.scale != 1.0 && key.optimizer != simd::Optimizer::kNone) {
    for (float& value : gradient) value *= static_cast<float>(decision.scale);
  }
  UpdateSerially(key, round, gradient, state);
}

// Rack 0 has not planned the exchange of the key's group yet: SetGroupPlan() is called then.
bool HasNoPlan(const JobScript& job, std::uint32_t index) {
  const KeyScript& key = job.keys[index];
  return key.group != kNoGroup && RacksOf(job, key.group).size() > 1 && job.sums[index].empty();
}

void ApplyIteration(JobScript& job, std::uint64_t iteration, std::vector<KeyState>& states) {
  std::vector<std::vector<float>> gradients(job.keys.size());
  for (std::uint32_t index = 0; index < job.keys.size(); ++index) {
    if (!HasNoPlan(job, index))
      gradients[index] = SumSerially(job, index, iteration, states[index].parameters);
  }
  Decision decision;
  if (job.apply_iteration) decision = DecideSerially(job, iteration, gradients);
  for (std::uint32_t index = 0; index < job.keys.size(); ++index) {
    if (!HasNoPlan(job, index))
      ApplyRound(job, index, iteration, decision, std::move(gradients[index]), states[index]);
  }
}

KeyState InitialState(const KeyScript& key) {
  KeyState state;
  state.parameters.assign(key.element_count, 0.0f);
  state.states.assign(simd::kStatesMax, state.parameters);
  return state;
}

}  // namespace

void ComputeExpectedOf(JobScript& job, std::uint32_t index) {
  KeyScript& key = job.keys[index];
  KeyState state = InitialState(key);
  key.expected = {state.parameters};
  key.expected_states = {state.states};
  for (std::uint32_t iteration = 1; iteration <= job.iterations; ++iteration) {
    ApplyRound(job, index, iteration, {}, SumSerially(job, index, iteration, state.parameters),
               state);
    key.expected.push_back(state.parameters);
    key.expected_states.push_back(state.states);
  }
}

void ComputeExpected(JobScript& job) {
  std::vector<KeyState> states(job.keys.size());
  const auto keep = [&](std::size_t index) {
    job.keys[index].expected.push_back(states[index].parameters);
    job.keys[index].expected_states.push_back(states[index].states);
  };
  for (std::size_t index = 0; index < job.keys.size(); ++index) {
    states[index] = InitialState(job.keys[index]);
    keep(index);
  }
  for (std::uint32_t iteration = 1; iteration <= job.iterations; ++iteration) {
    ApplyIteration(job, iteration, states);
    for (std::size_t index = 0; index < job.keys.size(); ++index) keep(index);
  }
}

}  // namespace phub::sim
