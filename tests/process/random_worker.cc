#include "tests/process/random_worker.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"

namespace phub::process {
namespace {

Elements View(ElementType type, Bytes& bytes, std::uint64_t count) {
  return {bytes.data(), count, type};
}

// One rank of a job, from joining to leaving. Stops at the first problem.
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
         .apply = job_.apply_iteration ? Apply::kIteration : Apply::kChunk,
         .clip_norm = job_.clip_norm,
         .skip_nonfinite = job_.skip_nonfinite,
         .transport = random_.Chance(1, 3) ? TransportChoice::kTcp : TransportChoice::kAuto,
         .plan = job_.plan,
         // If a rank fails, the others end as well, and the test says why.
         .join_timeout = std::chrono::seconds(60),
         .sum = job_.sum_block != 0 ? Sum::kFixed : Sum::kFloat,
         .sum_block = job_.sum_block});
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
    bool holds_parameters = false;  // the last round left its parameters here
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
        spec.options.compression = key.compression;
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

  // Runs all keys of one iteration, in an order of this rank's own.
  std::string Iterate(Job& job, std::uint64_t iteration) {
    std::vector<Handle> handles(keys_.size());
    const std::size_t start = random_.Below(keys_.size());
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      const std::size_t key = (start + i) % keys_.size();
      handles[key] = Start(job, key, iteration);
    }
    for (std::size_t key = 0; key < keys_.size(); ++key) {
      if (Status status = handles[key].Wait(); !status.ok()) return Wrong("wait", status);
      const Bytes got = Parameters(key);
      const Bytes& expected = job_.keys[key].expected[iteration];
      const auto differs = std::mismatch(got.begin(), got.end(), expected.begin());
      if (differs.first == got.end()) continue;
      return job_.name + " rank " + std::to_string(rank_) + " key" + std::to_string(key) +
             " iteration " + std::to_string(iteration) + " byte " +
             std::to_string(differs.first - got.begin()) + ": other bits than the serial ones";
    }
    const std::uint64_t skipped = job.last_iteration().skipped;
    if (skipped == job_.skipped[iteration]) return "";
    return job_.name + " rank " + std::to_string(rank_) + " iteration " +
           std::to_string(iteration) + ": " + std::to_string(skipped) + " were skipped, not " +
           std::to_string(job_.skipped[iteration]);
  }

  // The key's parameters after the last round, from the memory that the round used.
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
      PHUB_CHECK(status.ok(), "{}", ToString(status));
    }
    const Bytes gradient = GradientOf(job_, index, iteration, rank_, read);
    const bool asks = IsIn(job_, RandomTrouble::Kind::kAsks, index, iteration, rank_);
    const std::uint64_t kind = asks ? 2 : random_.Below(3);
    own.holds_parameters = kind == 0;
    if (kind == 2) {  // phub's memory on both sides
      std::memcpy(key.gradients().data, gradient.data(), gradient.size());
      return asks ? key.PushPullToSkip() : key.PushPull();
    }
    own.gradients = gradient;
    if (kind == 1) {  // ordinary memory for gradients only, with a separate pull
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
  std::vector<OwnMemory> own_;  // by key
};

}  // namespace

std::string RunRanks(const RandomJob& job,
                     const std::function<std::string(std::uint32_t rank)>& endpoint_of) {
  std::mutex mutex;
  std::string problem;
  std::vector<std::thread> ranks;
  for (std::uint32_t i = 0; i < job.world_size; ++i) {
    const auto rank = static_cast<std::uint32_t>((job.seed + i) % job.world_size);
    ranks.emplace_back([&, rank] {
      const std::string wrong = Worker(job, rank).Run(endpoint_of(rank));
      const std::lock_guard lock(mutex);
      if (problem.empty()) problem = wrong;
    });
  }
  for (std::thread& thread : ranks) thread.join();
  return problem.empty() ? "" : problem + "\n" + Describe(job);
}

}  // namespace phub::process
