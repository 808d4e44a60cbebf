// One rank of a small training job through libphub, with keys of several types and optimizers.
// Gradients are a hash of the parameters that the rank read. If a rank ever reads one wrong bit, it
// pushes different gradients, and all later parameters differ. The result depends only on the world
// size and the number of iterations.
//
// One thread each, as a worker process (process-trainer) or a thread of a test.
#pragma once

#include <phub/client.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/process/process.h"

namespace phub::process {

struct TrainerOptions {
  bool initialize = true;        // initialize the keys; not before LoadState
  std::uint64_t scale = 1;       // multiplies the keys' sizes; 1: about 200 KB of parameters
  std::uint64_t small_keys = 0;  // in addition, of one element each, which begin with 0
};

class Trainer {
 public:
  // Joins, adds the keys, and initializes them.
  static Result<Trainer> Start(const std::string& endpoint, const JobOptions& job,
                               const TrainerOptions& options = {});

  Job& job() { return job_; }
  std::uint64_t iteration() const { return job_.iteration(); }
  // One iteration of all keys.
  Status Iterate();
  // Trains until this many iterations are complete.
  Status TrainUntil(std::uint64_t iterations);
  // The parameters of all keys, one after the other.
  std::vector<std::byte> Parameters() const;

 private:
  explicit Trainer(Job job) : job_(std::move(job)) {}
  Status AddKeys(const TrainerOptions& options);

  Job job_;
  std::vector<Key> keys_;
};

// The parameters of all ranks of a job of threads, or a message if a rank failed or they differ.
struct Trained {
  std::vector<std::byte> parameters;
  std::string problem;
};
// Runs a whole job without disturbances. A disturbed job must have the same result.
Trained TrainUndisturbed(const std::string& endpoint, const JobOptions& job,
                         std::uint64_t iterations, const TrainerOptions& options = {});
// Across racks: one endpoint per rack. Each rack has the same number of ranks.
Trained TrainUndisturbed(const std::vector<std::string>& endpoints, const JobOptions& job,
                         std::uint64_t iterations, const TrainerOptions& options = {});

}  // namespace phub::process
