// Random jobs over real sockets: libphub's workers as threads, a phubd of its own, and after every
// round the bits of the serial oracle of the simulation (tests/sim/script.h).
// PHUB_TEST_LONG=1 runs 2,000 jobs instead of 40; PHUB_JOBS_SEED=n runs one.
#include <gtest/gtest.h>
#include <phub/client.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/process/daemon_process.h"
#include "tests/sim/script.h"

namespace phub::process {
namespace {

using sim::JobScript;
using sim::KeyScript;
using sim::RoundScript;

Optimizer OptimizerOf(const KeyScript& key, const RoundScript& round) {
  const wire::HyperParameters& hyper = round.hyper_parameters;
  if (key.optimizer == sim::OptimizerKind::kNone) return None{};
  if (key.optimizer == sim::OptimizerKind::kSgd) {
    return Sgd{.learning_rate = hyper.learning_rate, .weight_decay = hyper.weight_decay};
  }
  return Momentum{.learning_rate = hyper.learning_rate,
                  .momentum = hyper.momentum,
                  .dampening = hyper.dampening,
                  .weight_decay = hyper.weight_decay};
}

// One rank of a job, from joining to leaving. Stops at the first thing that is wrong.
class Worker {
 public:
  Worker(const JobScript& job, std::uint32_t rank, std::uint64_t seed)
      : job_(job), rank_(rank), random_(seed) {}

  std::string Run(const std::string& endpoint) {
    auto session = Connect(endpoint);
    if (!session.ok()) return Wrong("connect", session.status());
    auto job = session->Join({.job = job_.name,
                              .rank = rank_,
                              .world_size = job_.world_size,
                              .chunk_bytes = job_.chunk_bytes,
                              .staging_bytes = job_.slots_per_lane * job_.chunk_bytes});
    if (!job.ok()) return Wrong("join", job.status());
    if (Status status = AddKeys(*job); !status.ok()) return Wrong("add keys", status);
    user_gradients_.resize(keys_.size());
    user_parameters_.resize(keys_.size());
    for (std::uint64_t iteration = 1; iteration <= job_.iterations; ++iteration) {
      std::string wrong = Iterate(*job, iteration);
      if (!wrong.empty()) return wrong;
    }
    if (Status status = job->Barrier(); !status.ok()) return Wrong("barrier", status);
    if (Status status = job->Leave(); !status.ok()) return Wrong("leave", status);
    return "";
  }

 private:
  std::string Wrong(const std::string& what, const Status& status) const {
    return job_.name + " rank " + std::to_string(rank_) + " " + what + ": " + ToString(status);
  }

  Status AddKeys(Job& job) {
    for (std::uint32_t batch = 0; batch <= job_.keys.back().batch; ++batch) {
      std::vector<KeySpec> specs;
      for (const KeyScript& key : job_.keys) {
        if (key.batch != batch) continue;
        KeySpec spec;
        spec.name = key.name;
        spec.element_count = key.element_count;
        spec.optimizer = OptimizerOf(key, key.rounds[0]);
        spec.options.operation = key.mean ? Operation::kMean : Operation::kSum;
        spec.options.priority = static_cast<std::int32_t>(random_.Below(3));
        specs.push_back(std::move(spec));
      }
      auto added = job.AddKeys(specs);
      if (!added.ok()) return added.status();
      keys_.insert(keys_.end(), added->begin(), added->end());
    }
    return {};
  }

  // All keys of one iteration, in an order of this rank's own.
  std::string Iterate(Job& job, std::uint64_t iteration) {
    std::vector<Handle> handles(keys_.size());
    const std::size_t start = random_.Below(keys_.size());
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      const std::size_t key = (start + i) % keys_.size();
      handles[key] = Start(job, key, iteration);
    }
    for (std::size_t key = 0; key < keys_.size(); ++key) {
      if (Status status = handles[key].Wait(); !status.ok()) return Wrong("wait", status);
      const std::vector<float>& expected = job_.keys[key].expected[iteration];
      const std::span<const float> got = Parameters(key);
      if (std::memcmp(expected.data(), got.data(), got.size_bytes()) != 0) {
        return job_.name + " rank " + std::to_string(rank_) + " key" + std::to_string(key) +
               " iteration " + std::to_string(iteration) + ": other bits than the serial sum's";
      }
    }
    return "";
  }

  // Where the last round of the key put its parameters.
  std::span<const float> Parameters(std::size_t key) const {
    if (!user_parameters_[key].empty()) return user_parameters_[key];
    return keys_[key].parameters();
  }

  Handle Start(Job& job, std::size_t index, std::uint64_t iteration) {
    const KeyScript& script = job_.keys[index];
    const RoundScript& round = script.rounds[iteration - 1];
    const auto key_number = static_cast<std::uint32_t>(index);
    Key& key = keys_[index];
    const std::vector<float> read(Parameters(index).begin(), Parameters(index).end());
    if (round.operation == wire::RoundOperation::kAssign) {
      user_parameters_[index].clear();
      const std::vector<float> values = sim::BroadcastOf(job_, key_number, iteration);
      if (round.root == rank_) std::copy(values.begin(), values.end(), key.parameters().begin());
      return job.Broadcast(key, round.root);
    }
    if (script.optimizer != sim::OptimizerKind::kNone) {
      const Status status = key.SetHyperParameters(OptimizerOf(script, round));
      EXPECT_TRUE(status.ok()) << ToString(status);
    }
    const std::vector<float> gradient = sim::GradientOf(job_, key_number, iteration, rank_, read);
    switch (random_.Below(3)) {
      case 0:  // ordinary memory on both sides
        user_gradients_[index] = gradient;
        user_parameters_[index].resize(gradient.size());
        return key.PushPull(user_gradients_[index], user_parameters_[index]);
      case 1:  // ordinary memory for gradients only, and the pull apart
        user_gradients_[index] = gradient;
        user_parameters_[index].clear();
        key.Push(user_gradients_[index]);
        return key.Pull();
      default:
        user_parameters_[index].clear();
        std::copy(gradient.begin(), gradient.end(), key.gradients().begin());
        return key.PushPull();
    }
  }

  const JobScript& job_;
  const std::uint32_t rank_;
  SeededRandom random_;
  std::vector<Key> keys_;
  std::vector<std::vector<float>> user_gradients_;
  std::vector<std::vector<float>> user_parameters_;  // [key]; empty: the key's own memory
};

std::string RunJob(const std::string& endpoint, std::uint64_t seed) {
  SeededRandom random(seed);
  JobScript script = sim::DrawJob(random, "random" + std::to_string(seed), sim::Fate::kCompletes);
  std::mutex mutex;
  std::string problem;
  std::vector<std::thread> ranks;
  for (std::uint32_t rank = 0; rank < script.world_size; ++rank) {
    ranks.emplace_back([&, rank] {
      const std::string wrong = Worker(script, rank, seed * 1000 + rank).Run(endpoint);
      const std::lock_guard lock(mutex);
      if (problem.empty()) problem = wrong;
    });
  }
  for (std::thread& thread : ranks) thread.join();
  return problem.empty() ? "" : problem + "\n" + sim::Describe(script);
}

TEST(RandomJobs, HaveTheBitsOfTheSerialOracle) {
  DaemonProcess daemon({"--cores", "2", "--pin", "off"});
  ASSERT_FALSE(daemon.endpoint().empty()) << daemon.process().Outputs();
  if (const char* one = std::getenv("PHUB_JOBS_SEED")) {
    EXPECT_EQ(RunJob(daemon.endpoint(), std::strtoull(one, nullptr, 10)), "");
    return;
  }
  const std::uint64_t count = std::getenv("PHUB_TEST_LONG") != nullptr ? 2'000 : 40;
  for (std::uint64_t seed = 0; seed < count; ++seed) {
    ASSERT_EQ(RunJob(daemon.endpoint(), seed), "") << "reproduce with: PHUB_JOBS_SEED=" << seed;
  }
}

}  // namespace
}  // namespace phub::process
