#include "tests/sim/script.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

namespace phub::sim {
namespace {

std::uint64_t Mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t z = a * 0x9e3779b97f4a7c15u ^ (b + 0x7f4a7c159e3779b9u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// In [-1, 1); every value is exact.
float UnitFloat(std::uint64_t bits) {
  return static_cast<float>(static_cast<std::int32_t>(bits >> 40) - (1 << 23)) * 0x1p-23f;
}

std::uint64_t HashOf(const std::vector<float>& values) {
  std::uint64_t hash = values.size();
  for (const float value : values) hash = Mix(hash, std::bit_cast<std::uint32_t>(value));
  return hash;
}

std::vector<std::uint32_t> Count(std::uint32_t first, std::uint32_t count) {
  std::vector<std::uint32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

float LaneValue(std::uint32_t key, std::uint64_t iteration) {
  return static_cast<float>(1 + (iteration + key) % 7);
}

wire::HyperParameters DrawHyperParameters(SeededRandom& random, simd::Optimizer optimizer) {
  wire::HyperParameters values;
  values.learning_rate = static_cast<double>(1 + random.Below(64)) / 128.0;
  switch (optimizer) {
    case simd::Optimizer::kNone:
    case simd::Optimizer::kSgd: break;
    case simd::Optimizer::kMomentum:
      values.momentum = random.Chance(3, 4) ? 0.9 : 0.0;
      values.dampening = random.Chance(1, 4) ? 0.25 : 0.0;
      break;
    case simd::Optimizer::kNesterov: values.momentum = 0.9; break;
    case simd::Optimizer::kAdam:
    case simd::Optimizer::kAdamW:
      values.beta1 = 0.9;
      values.beta2 = random.Chance(1, 2) ? 0.999 : 0.95;
      values.epsilon = 1e-8;
      break;
    case simd::Optimizer::kAdagrad:
      values.epsilon = 1e-10;
      values.learning_rate_decay = random.Chance(1, 2) ? 0.125 : 0.0;
      break;
    case simd::Optimizer::kRmsProp:
    case simd::Optimizer::kRmsPropMomentum:
    case simd::Optimizer::kRmsPropCentered:
      values.alpha = random.Chance(1, 2) ? 0.99 : 0.9;
      values.epsilon = 1e-6;
      if (optimizer == simd::Optimizer::kRmsPropMomentum) values.momentum = 0.9;
      break;
  }
  if (optimizer != simd::Optimizer::kNone) values.weight_decay = random.Chance(1, 3) ? 0.01 : 0.0;
  return values;
}

// Takes a copy of the generator, so that the seed's other decisions do not change. The first key is
// always one of iterations.
void DrawCollective(SeededRandom random, const JobScript& job, std::uint32_t index,
                    KeyScript& key) {
  constexpr int kDrawnByMovement = 4;
  for (int i = 0; i < kDrawnByMovement; ++i) (void)random.Below(2);
  if (job.restart || job.racks > 1 || index == 0) return;
  key.collective = random.Chance(1, 3);
  if (key.collective) key.optimizer = simd::Optimizer::kNone;
}

// Takes a copy of the generator, so that the seed's other decisions do not change. The first key of
// a job that fails stays an all-reduce, because the fate shows in it.
void DrawMovement(SeededRandom random, const JobScript& job, std::uint32_t index, KeyScript& key) {
  if ((job.apply_iteration && !key.collective) || job.racks > 1) return;
  if (index == 0 && job.fate != Fate::kCompletes) return;
  if (random.Below(2) == 0) return;
  key.movement = static_cast<KeyMovement>(1 + random.Below(kMovementMax));
  if (HasRoot(key.movement)) key.root = static_cast<std::uint32_t>(random.Below(job.world_size));
  key.optimizer = simd::Optimizer::kNone;
  const bool squares = key.movement == KeyMovement::kAllToAll;
  const std::uint32_t parts = job.world_size * (squares ? job.world_size : 1);
  key.element_count = (key.element_count + parts - 1) / parts * parts;
  const bool moves = MovesBytes(key.movement);
  if (moves) {
    key.gradients = GradientKind::kHash;
    key.mean = false;
  }
  for (RoundScript& round : key.rounds) {
    round.operation = moves ? wire::RoundOperation::kMove : wire::RoundOperation::kReduce;
  }
}

// Takes a copy of the generator, like DrawMovement().
simd::Optimizer DrawRmsProp(SeededRandom random) {
  constexpr simd::Optimizer kKinds[] = {simd::Optimizer::kRmsProp,
                                        simd::Optimizer::kRmsPropMomentum,
                                        simd::Optimizer::kRmsPropCentered};
  return random.Chance(1, 4) ? simd::Optimizer::kAdagrad : kKinds[random.Below(3)];
}

KeyScript DrawKey(SeededRandom& random, const JobScript& job, std::uint32_t index) {
  KeyScript key;
  key.name = fmt::format("key{}", index);
  key.element_count = static_cast<std::uint32_t>(1 + random.Below(random.Chance(1, 4) ? 8 : 400));
  key.gradients = random.Chance(1, 2) ? GradientKind::kLanes : GradientKind::kHash;
  if (key.gradients == GradientKind::kHash) {
    constexpr std::uint64_t kLast = static_cast<std::uint64_t>(simd::Optimizer::kAdagrad);
    key.optimizer = static_cast<simd::Optimizer>(random.Below(kLast + 1));
    if (key.optimizer == simd::Optimizer::kAdagrad) key.optimizer = DrawRmsProp(random);
    key.mean = random.Chance(1, 2);
  }
  wire::HyperParameters hyper = DrawHyperParameters(random, key.optimizer);
  for (std::uint32_t iteration = 1; iteration <= job.iterations; ++iteration) {
    RoundScript round;
    if (iteration > 1 && random.Chance(1, 3)) hyper = DrawHyperParameters(random, key.optimizer);
    round.hyper_parameters = hyper;
    // In jobs that restart, the number of reductions identifies a version.
    if (random.Chance(1, 6) && (!job.restart || iteration == 1)) {
      round.operation = wire::RoundOperation::kAssign;
      round.root = static_cast<std::uint32_t>(random.Below(job.world_size));
    }
    if (job.apply_iteration && index > 0) {  // an iteration has all keys or none
      const RoundScript& first = job.keys[0].rounds[iteration - 1];
      round.operation = first.operation;
      round.root = first.root;
    }
    key.rounds.push_back(round);
  }
  DrawCollective(random, job, index, key);
  DrawMovement(random, job, index, key);
  DrawEncoding(random, job, key);
  return key;
}

// Takes a copy of the generator, so that the seed's other decisions do not change.
void DrawApply(SeededRandom random, JobScript& job) {
  job.apply_iteration = !job.restart && random.Chance(1, 3);
  if (!job.apply_iteration) return;
  job.clip_norm = random.Chance(1, 3) ? 0.0 : static_cast<double>(1 + random.Below(64)) / 8.0;
  job.skip_nonfinite = random.Chance(2, 3);
}

// REQUIRES: the keys are drawn.
void DrawTroubles(SeededRandom random, JobScript& job) {
  using Kind = TroubleScript::Kind;
  if (!job.apply_iteration) return;
  for (std::uint32_t iteration = 1; iteration <= job.iterations; ++iteration) {
    TroubleScript& trouble = job.troubles.emplace_back();
    if (job.keys[0].rounds[iteration - 1].operation != wire::RoundOperation::kReduce) continue;
    trouble.rank = static_cast<std::uint32_t>(random.Below(job.world_size));
    trouble.key = static_cast<std::uint32_t>(random.Below(job.keys.size()));
    if (job.keys[trouble.key].collective) trouble.key = 0;
    if (random.Chance(1, 8)) trouble.kind = Kind::kAsks;
    // Which NaN an operation on a NaN returns depends on the machine. So NaNs are drawn only where
    // the iteration is skipped.
    if (job.skip_nonfinite && random.Chance(1, 6)) trouble.kind = Kind::kNonFinite;
  }
}

void DrawPolicy(SeededRandom& random, JobScript& job) {
  const bool completes = job.fate == Fate::kCompletes;
  const bool may_wait = completes || job.loses_daemon() || job.fate == Fate::kRacksCut;
  job.wait_policy = job.fate == Fate::kNeverReturns || (may_wait && random.Chance(1, 2));
  job.restart = job.wait_policy && random.Chance(1, 2);
  if (completes && job.restart) job.crashes = static_cast<std::uint32_t>(random.Below(4));
  // If a worker or lane is to come back, the timeout is long enough for it.
  if (!completes) job.wait_timeout = static_cast<DurationNs>(1 + random.Below(3)) * kSecond;
}

// Makes sure that the fate can occur: the culprit's round is one in which it shows.
void PrepareFate(SeededRandom& random, JobScript& job) {
  job.culprit = static_cast<std::uint32_t>(random.Below(job.world_size));
  job.culprit_iteration = static_cast<std::uint32_t>(1 + random.Below(job.iterations));
  RoundScript& round = job.keys[0].rounds[job.culprit_iteration - 1];
  // An iteration has all keys or none; otherwise no rank would reach the culprit's iteration.
  const auto reduce_all = [&](std::uint32_t iteration) {
    for (KeyScript& key : job.keys) {
      if (job.apply_iteration && !key.collective) {
        key.rounds[iteration - 1].operation = wire::RoundOperation::kReduce;
      }
    }
  };
  if (job.fate == Fate::kHyperParametersDiffer) {
    round.operation = wire::RoundOperation::kReduce;
    reduce_all(job.culprit_iteration);
    // The first round's record is agreed when keys are added, so the culprit's iteration is a later
    // one. A record is sent only if it differs from the previous one, so no rank's may equal that.
    if (job.culprit_iteration == 1) job.culprit_iteration = 2;
    RoundScript& changed = job.keys[0].rounds[job.culprit_iteration - 1];
    changed.operation = wire::RoundOperation::kReduce;
    reduce_all(job.culprit_iteration);
    changed.hyper_parameters.learning_rate =
        job.keys[0].rounds[job.culprit_iteration - 2].hyper_parameters.learning_rate + 0.25f;
  }
  if (job.fate == Fate::kRootsDiffer) {
    round.operation = wire::RoundOperation::kAssign;
    round.root = (job.culprit + 1) % job.world_size;
  }
}

void DrawSlots(SeededRandom& random, JobScript& job) {
  job.chunk_bytes = static_cast<std::uint32_t>(256 + 64 * random.Below(8));
  job.slots_per_lane = static_cast<std::uint32_t>(random.Chance(1, 2) ? 1 : 1 + random.Below(6));
}

void DrawTraining(SeededRandom& random, JobScript& job) {
  job.lockstep = random.Chance(1, 3);
  job.cancel_chance = random.Chance(1, 3) ? 100'000 : 0;
  job.iterations = static_cast<std::uint32_t>(2 + random.Below(6));
  const std::uint64_t key_count = 1 + random.Below(6);
  std::uint32_t batch = 0;
  for (std::uint32_t i = 0; i < key_count; ++i) {
    if (i > 0 && random.Chance(1, 3)) ++batch;
    job.keys.push_back(DrawKey(random, job, i));
    job.keys.back().batch = batch;
  }
  if (job.fate != Fate::kCompletes) PrepareFate(random, job);
  DrawTroubles(random, job);
}

}  // namespace

const char* ToString(Fate fate) {
  switch (fate) {
    case Fate::kCompletes: return "completes";
    case Fate::kWorkerDies: return "worker_dies";
    case Fate::kWorkerSilent: return "worker_silent";
    case Fate::kLaneBreaks: return "lane_breaks";
    case Fate::kKeysDiffer: return "keys_differ";
    case Fate::kHyperParametersDiffer: return "records_differ";
    case Fate::kRootsDiffer: return "roots_differ";
    case Fate::kNeverReturns: return "never_returns";
    case Fate::kDaemonDies: return "daemon_dies";
    case Fate::kDaemonSilent: return "daemon_silent";
    case Fate::kLanesCut: return "lanes_cut";
    case Fate::kRacksCut: return "racks_cut";
  }
  return "unknown";
}

JobScript DrawJob(SeededRandom& random, std::string name, Fate fate, bool one_daemon) {
  JobScript job;
  job.name = std::move(name);
  job.fate = fate;
  const bool fails = fate != Fate::kCompletes;
  job.world_size = static_cast<std::uint32_t>((fails ? 2 : 1) + random.Below(fails ? 4 : 5));
  DrawSlots(random, job);
  DrawPolicy(random, job);
  DrawApply(random, job);
  DrawSum(random, job);
  DrawTraining(random, job);
  DrawPoolsAndRemovals(random, job);
  if (one_daemon) DrawGroups(random, job);
  ComputeExpected(job);
  return job;
}

JobScript DrawRackJob(SeededRandom& random, std::string name, Fate fate,
                      const RackPlanScript& racks) {
  JobScript job;
  job.name = std::move(name);
  job.fate = fate;
  job.racks = racks.racks;
  job.plan = racks.plan;
  job.world_size = job.racks * static_cast<std::uint32_t>(1 + random.Below(3));
  DrawSlots(random, job);
  SeededRandom aside = random;  // keeps the rest of the seed's decisions unchanged
  DrawPolicy(aside, job);
  DrawTraining(random, job);
  if (racks.one_daemon) DrawGroups(random, job);
  DrawSums(job, racks);
  ComputeExpected(job);
  return job;
}

std::string Describe(const JobScript& job) {
  std::string text = fmt::format(
      "job={} fate={} culprit={}@{} ranks={} racks={} plan={} chunk_bytes={} slots={} wait={} "
      "restart={} crashes={} lockstep={} apply_iteration={} clip_norm={} skip_nonfinite={} "
      "sum_block={} iterations={} removals={} keys=[",
      job.name, ToString(job.fate), job.culprit, job.culprit_iteration, job.world_size, job.racks,
      job.plan, job.chunk_bytes, job.slots_per_lane, job.wait_policy, job.restart, job.crashes,
      job.lockstep, job.apply_iteration, job.clip_norm, job.skip_nonfinite, job.sum_block,
      job.iterations, job.removals);
  for (const KeyScript& key : job.keys) text += DescribeKey(key);
  return text + "]" + DescribeGroups(job);
}

std::vector<float> GradientOf(const JobScript& job, std::uint32_t key, std::uint64_t iteration,
                              std::uint32_t rank, const std::vector<float>& parameters) {
  std::vector<float> gradient(job.keys[key].element_count);
  if (job.keys[key].gradients == GradientKind::kLanes) {
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = i % job.world_size == rank ? LaneValue(key, iteration) : 0.0f;
    }
    return gradient;
  }
  const std::uint64_t hash = Mix(HashOf(parameters), Mix(iteration, rank));
  const bool moves = MovesBytes(job.keys[key].movement);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const std::uint64_t bits = Mix(hash, i);
    gradient[i] = moves ? std::bit_cast<float>(static_cast<std::uint32_t>(bits)) : UnitFloat(bits);
  }
  if (job.IsIn(TroubleScript::Kind::kNonFinite, key, iteration, rank)) {
    gradient[hash % gradient.size()] = hash % 2 == 0 ? std::numeric_limits<float>::quiet_NaN()
                                                     : std::numeric_limits<float>::infinity();
  }
  return gradient;
}

std::uint64_t IterationsOf(const JobScript& job) {
  std::uint64_t least = job.iterations;
  for (const KeyScript& key : job.keys) {
    if (key.collective) continue;
    const auto reductions = std::ranges::count_if(key.rounds, [](const RoundScript& round) {
      return wire::IsIteration(round.operation) && !round.skipped;
    });
    least = std::min(least, static_cast<std::uint64_t>(reductions));
  }
  return least;
}

std::vector<std::uint32_t> PushedBy(const JobScript& job, const KeyScript& key,
                                    std::uint32_t rank) {
  const std::uint32_t part = key.element_count / job.world_size;
  switch (key.movement) {
    case KeyMovement::kGather:
    case KeyMovement::kGatherToOne:
    case KeyMovement::kAllToAll: return Count(rank * part, part);
    case KeyMovement::kScatter: return Count(0, key.root == rank ? key.element_count : 0);
    case KeyMovement::kAllReduce:
    case KeyMovement::kReduceScatter: break;
  }
  return Count(0, key.element_count);
}

std::vector<std::uint32_t> ReceivedBy(const JobScript& job, const KeyScript& key,
                                      std::uint32_t rank) {
  const std::uint32_t part = key.element_count / job.world_size;
  switch (key.movement) {
    case KeyMovement::kReduceScatter:
    case KeyMovement::kScatter: return Count(rank * part, part);
    case KeyMovement::kGatherToOne: return Count(0, key.root == rank ? key.element_count : 0);
    case KeyMovement::kAllToAll: {
      std::vector<std::uint32_t> elements;
      for (std::uint32_t sender = 0; sender < job.world_size; ++sender) {
        const auto own =
            Count(sender * part + rank * (part / job.world_size), part / job.world_size);
        elements.insert(elements.end(), own.begin(), own.end());
      }
      return elements;
    }
    case KeyMovement::kAllReduce:
    case KeyMovement::kGather: break;
  }
  return Count(0, key.element_count);
}

std::vector<float> Pick(const std::vector<float>& whole,
                        const std::vector<std::uint32_t>& elements) {
  std::vector<float> picked;
  picked.reserve(elements.size());
  for (const std::uint32_t element : elements) picked.push_back(whole[element]);
  return picked;
}

std::vector<float> BroadcastOf(const JobScript& job, std::uint32_t key, std::uint64_t iteration) {
  std::vector<float> values(job.keys[key].element_count);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = UnitFloat(Mix(Mix(key, iteration), i + 12345));
  }
  return values;
}

}  // namespace phub::sim
