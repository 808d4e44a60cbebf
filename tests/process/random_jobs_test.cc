// Random jobs over real daemons: libphub's workers as threads, racks of one to three phubd, every
// type, operation and optimizer, lanes over shared memory and tcp, pushes in random orders; and
// after every round the bits of the serial oracle (random_job.h).
// PHUB_TEST_LONG=1 runs 10,000 jobs instead of 300; PHUB_JOBS_SEED=n runs one.
#include <gtest/gtest.h>
#include <phub/client.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/process/rack_process.h"
#include "tests/process/random_job.h"

namespace phub::process {
namespace {

Elements View(ElementType type, Bytes& bytes, std::uint64_t count) {
  return {bytes.data(), count, type};
}

// One rank of a job, from joining to leaving. Stops at the first thing that is wrong.
class Worker {
 public:
  Worker(const RandomJob& job, std::uint32_t rank)
      : job_(job), rank_(rank), random_(job.seed * 1000 + rank) {}

  std::string Run(const std::string& endpoint) {
    auto session = Connect(endpoint);
    if (!session.ok()) return Wrong("connect", session.status());
    auto job = session->Join(
        {.job = job_.name,
         .rank = rank_,
         .world_size = job_.world_size,
         .chunk_bytes = job_.chunk_bytes,
         .staging_bytes = job_.slots_per_lane * job_.chunk_bytes,
         .on_loss = job_.restart ? LossPolicy::kWait : LossPolicy::kFail,
         .restart = job_.restart,
         .transport = random_.Chance(1, 3) ? TransportChoice::kTcp : TransportChoice::kAuto});
    if (!job.ok()) return Wrong("join", job.status());
    if (Status status = AddKeys(*job); !status.ok()) return Wrong("add keys", status);
    own_.resize(keys_.size());
    for (std::uint64_t iteration = 1; iteration <= job_.iterations; ++iteration) {
      std::string wrong = Iterate(*job, iteration);
      if (!wrong.empty()) return wrong;
    }
    if (Status status = job->Barrier(); !status.ok()) return Wrong("barrier", status);
    if (Status status = job->Leave(); !status.ok()) return Wrong("leave", status);
    return "";
  }

 private:
  // Ordinary memory that a round may use in place of the key's.
  struct OwnMemory {
    Bytes gradients, parameters;
    bool holds_parameters = false;  // of the last round
  };

  std::string Wrong(const std::string& what, const Status& status) const {
    return job_.name + " rank " + std::to_string(rank_) + " " + what + ": " + ToString(status);
  }

  Status AddKeys(Job& job) {
    for (std::uint32_t batch = 0; batch <= job_.keys.back().batch; ++batch) {
      std::vector<KeySpec> specs;
      for (const RandomKey& key : job_.keys) {
        if (key.batch != batch) continue;
        KeySpec spec;
        spec.name = key.name;
        spec.type = key.type;
        spec.element_count = key.element_count;
        spec.optimizer = key.rounds[0].optimizer;
        spec.options.operation = key.operation;
        spec.options.gradient_type = key.gradient_type;
        spec.options.parameter_type = key.parameter_type;
        spec.options.priority = static_cast<std::int32_t>(random_.Below(3));
        spec.options.copy = random_.Chance(1, 3);
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
      if (Parameters(key) == job_.keys[key].expected[iteration]) continue;
      return job_.name + " rank " + std::to_string(rank_) + " key" + std::to_string(key) +
             " iteration " + std::to_string(iteration) + ": other bits than the serial ones";
    }
    return "";
  }

  // What the last round of the key brought, wherever it put it.
  Bytes Parameters(std::size_t key) const {
    if (own_[key].holds_parameters) return own_[key].parameters;
    const ConstElements elements = keys_[key].parameters();
    Bytes bytes(job_.keys[key].expected[0].size());
    std::memcpy(bytes.data(), elements.data, bytes.size());
    return bytes;
  }

  Handle Start(Job& job, std::size_t index, std::uint64_t iteration) {
    const RandomKey& script = job_.keys[index];
    const RandomRound& round = script.rounds[iteration - 1];
    const std::uint64_t count = script.element_count;
    Key& key = keys_[index];
    OwnMemory& own = own_[index];
    const Bytes read = Parameters(index);
    if (round.assigns) {
      own.holds_parameters = false;
      own.gradients = AssignmentOf(job_, index, iteration);
      return job.Broadcast(key, round.root, View(script.type, own.gradients, count));
    }
    if (!std::holds_alternative<None>(round.optimizer)) {
      const Status status = key.SetHyperParameters(round.optimizer);
      EXPECT_TRUE(status.ok()) << ToString(status);
    }
    const Bytes gradient = GradientOf(job_, index, iteration, rank_, read);
    const std::uint64_t kind = random_.Below(3);
    own.holds_parameters = kind == 0;
    if (kind == 2) {  // phub's memory on both sides
      std::memcpy(key.gradients().data, gradient.data(), gradient.size());
      return key.PushPull();
    }
    own.gradients = gradient;
    if (kind == 1) {  // ordinary memory for gradients only, and the pull apart
      key.Push(View(script.gradient_type, own.gradients, count));
      return key.Pull();
    }
    own.parameters.resize(read.size());
    return key.PushPull(View(script.gradient_type, own.gradients, count),
                        View(script.parameter_type, own.parameters, count));
  }

  const RandomJob& job_;
  const std::uint32_t rank_;
  SeededRandom random_;
  std::vector<Key> keys_;
  std::vector<OwnMemory> own_;  // [key]
};

class RandomJobs : public ::testing::Test {
 protected:
  void SetUp() override {
    for (std::size_t daemons = 1; daemons <= 3; ++daemons) {
      racks_.push_back(std::make_unique<RackProcess>(
          daemons, std::vector<std::string>{"--cores", "2", "--pin", "off"}));
      ASSERT_TRUE(racks_.back()->serving()) << racks_.back()->Outputs();
    }
  }

  std::string Run(std::uint64_t seed) {
    const RandomJob job = DrawJob(seed);
    const RackProcess& rack = *racks_[job.daemons - 1];
    std::mutex mutex;
    std::string problem;
    std::vector<std::thread> ranks;
    for (std::uint32_t rank = 0; rank < job.world_size; ++rank) {
      ranks.emplace_back([&, rank] {
        // Workers may know any of the rack's daemons.
        const std::string& endpoint = rack.endpoint((seed + rank) % job.daemons);
        const std::string wrong = Worker(job, rank).Run(endpoint);
        const std::lock_guard lock(mutex);
        if (problem.empty()) problem = wrong;
      });
    }
    for (std::thread& thread : ranks) thread.join();
    return problem.empty() ? "" : problem + "\n" + Describe(job);
  }

  std::vector<std::unique_ptr<RackProcess>> racks_;
};

TEST_F(RandomJobs, HaveTheBitsOfTheSerialOracle) {
  if (const char* one = std::getenv("PHUB_JOBS_SEED")) {
    EXPECT_EQ(Run(std::strtoull(one, nullptr, 10)), "");
    return;
  }
  const std::uint64_t count = std::getenv("PHUB_TEST_LONG") != nullptr ? 10'000 : 300;
  for (std::uint64_t seed = 0; seed < count; ++seed) {
    ASSERT_EQ(Run(seed), "") << "reproduce with: PHUB_JOBS_SEED=" << seed;
  }
}

}  // namespace
}  // namespace phub::process
