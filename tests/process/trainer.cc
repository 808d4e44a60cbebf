#include "tests/process/trainer.h"

#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "common/base/check.h"

namespace phub::process {
namespace {

// splitmix64: derives one word from another.
std::uint64_t Mixed(std::uint64_t word) {
  word += 0x9e3779b97f4a7c15u;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
  return word ^ (word >> 31);
}

std::size_t ElementBytes(ElementType type) {
  switch (type) {
    case f64: return 8;
    case f32: return 4;
    case bf16: return 2;
    default: break;
  }
  PHUB_CHECK(false, "type={}", static_cast<int>(type));
  return 0;
}

std::uint64_t HashOf(ConstElements elements) {
  const auto* bytes = static_cast<const unsigned char*>(elements.data);
  const std::size_t count = elements.count * ElementBytes(elements.type);
  std::uint64_t hash = 0;
  std::size_t i = 0;
  for (std::uint64_t word = 0; i + sizeof word <= count; i += sizeof word) {
    std::memcpy(&word, bytes + i, sizeof word);
    hash = Mixed(hash ^ word);
  }
  for (; i < count; ++i) hash = Mixed(hash ^ bytes[i]);
  return hash;
}

// Values in [-1, 1), in the type of the memory.
void FillFrom(std::uint64_t seed, Elements elements) {
  for (std::uint64_t i = 0; i < elements.count; ++i) {
    const auto drawn = static_cast<std::int32_t>(Mixed(seed + i) >> 40) - (1 << 23);
    const float value = static_cast<float>(drawn) / static_cast<float>(1 << 23);
    if (elements.type == f64) {
      static_cast<double*>(elements.data)[i] = static_cast<double>(value) / 3.0;
    } else if (elements.type == f32) {
      static_cast<float*>(elements.data)[i] = value;
    } else {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof bits);
      static_cast<Bfloat16*>(elements.data)[i].bits = static_cast<std::uint16_t>(bits >> 16);
    }
  }
}

// A learning rate that changes sometimes, as with a schedule.
double LearningRateAt(std::uint64_t iteration) {
  return 0.01 / static_cast<double>(1 + iteration / 7 % 5);
}

std::vector<Optimizer> OptimizersAt(std::uint64_t iteration) {
  const double rate = LearningRateAt(iteration);
  return {Adam{.learning_rate = rate},
          Momentum{.learning_rate = rate, .momentum = 0.9, .weight_decay = 1e-4},
          AdamW{.learning_rate = rate, .clip_value = 0.5},
          Nesterov{.learning_rate = rate, .momentum = 0.8}};
}

}  // namespace

Result<Trainer> Trainer::Start(const std::string& endpoint, const JobOptions& options,
                               const TrainerOptions& trainer_options) {
  Result<Session> session = Connect(endpoint);
  if (!session.ok()) return session.status();
  Result<Job> job = session->Join(options);
  if (!job.ok()) return job.status();
  Trainer trainer(*std::move(job));
  if (Status status = trainer.AddKeys(trainer_options); !status.ok()) return status;
  return trainer;
}

Status Trainer::AddKeys(const TrainerOptions& options) {
  const std::vector<Optimizer> optimizers = OptimizersAt(0);
  std::vector<KeySpec> specs = {
      {.name = "dense.weight", .element_count = 20'000 * options.scale},
      {.name = "dense.bias", .element_count = 300 * options.scale},
      {.name = "embedding", .element_count = 30'000 * options.scale},
      {.name = "scales", .type = f64, .element_count = 100 * options.scale}};
  specs[2].options.gradient_type = bf16;  // with f32 masters
  specs[2].options.parameter_type = bf16;
  for (std::size_t i = 0; i < specs.size(); ++i) specs[i].optimizer = optimizers[i];
  const std::size_t large = specs.size();
  for (std::uint64_t i = 0; i < options.small_keys; ++i) {
    specs.push_back({.name = fmt::format("norm.{}", i),
                     .element_count = 1,
                     .optimizer = optimizers[i % optimizers.size()]});
  }
  Result<std::vector<Key>> keys = job_.AddKeys(specs);
  if (!keys.ok()) return keys.status();
  keys_ = *std::move(keys);
  if (!options.initialize) return Status();
  for (std::size_t i = 0; i < large; ++i) {
    std::vector<std::byte> values(specs[i].element_count * ElementBytes(specs[i].type));
    const Elements view(values.data(), specs[i].element_count, specs[i].type);
    FillFrom(Mixed(i), view);
    if (Status status = job_.Initialize(keys_[i], view); !status.ok()) return status;
  }
  return Status();
}

Status Trainer::Iterate() {
  const std::uint64_t iteration = job_.iteration();
  const std::vector<Optimizer> optimizers = OptimizersAt(iteration);
  std::vector<Handle> handles;
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    Key& key = keys_[i];
    if (iteration % 7 == 0 && i < optimizers.size())
      if (Status status = key.SetHyperParameters(optimizers[i]); !status.ok()) return status;
    const std::uint64_t seed = Mixed(HashOf(key.parameters()) ^ Mixed(iteration));
    FillFrom(Mixed(seed ^ (job_.rank() * 4 + i)), key.gradients());
    handles.push_back(key.PushPull());
  }
  for (const Handle& handle : handles)
    if (Status status = handle.Wait(); !status.ok()) return status;
  return Status();
}

Status Trainer::TrainUntil(std::uint64_t iterations) {
  while (iteration() < iterations)
    if (Status status = Iterate(); !status.ok()) return status;
  return Status();
}

std::vector<std::byte> Trainer::Parameters() const {
  std::vector<std::byte> all;
  for (const Key& key : keys_) {
    const ConstElements elements = key.parameters();
    const auto* bytes = static_cast<const std::byte*>(elements.data);
    all.insert(all.end(), bytes, bytes + elements.count * ElementBytes(elements.type));
  }
  return all;
}

Trained TrainUndisturbed(const std::string& endpoint, const JobOptions& job,
                         std::uint64_t iterations, const TrainerOptions& options) {
  return TrainUndisturbed(std::vector<std::string>{endpoint}, job, iterations, options);
}

Trained TrainUndisturbed(const std::vector<std::string>& endpoints, const JobOptions& job,
                         std::uint64_t iterations, const TrainerOptions& options) {
  std::vector<Trained> results(job.world_size);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < job.world_size; ++rank) {
    threads.emplace_back([&, rank] {
      JobOptions own = job;
      own.rank = rank;
      const std::string& endpoint = endpoints[rank * endpoints.size() / job.world_size];
      Result<Trainer> trainer = Trainer::Start(endpoint, own, options);
      Status status = trainer.status();
      if (status.ok()) status = trainer->TrainUntil(iterations);
      if (status.ok()) results[rank].parameters = trainer->Parameters();
      if (status.ok()) status = trainer->job().Leave();
      if (!status.ok()) results[rank].problem = ToString(status);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Trained& result : results) {
    if (!result.problem.empty()) return result;
    if (result.parameters != results[0].parameters)
      return {.parameters = {}, .problem = "ranks came to different parameters"};
  }
  return results[0];
}

}  // namespace phub::process
