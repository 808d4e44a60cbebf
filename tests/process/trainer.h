// One rank of a small training job through libphub: keys of several types and optimizers, with
// gradients that are made from a hash of the parameters that the rank read. Whoever reads one wrong
// bit, once, pushes something else, and all later parameters differ. What comes out depends on
// nothing but the world size and the number of iterations.
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
  bool initialize = true;   // give the keys their first values; not before LoadState
  std::uint64_t scale = 1;  // multiplies the keys' sizes; 1: about 200 KB of parameters
};

class Trainer {
 public:
  // Joins, adds the keys, gives them their first values.
  static Result<Trainer> Start(const std::string& endpoint, const JobOptions& job,
                               const TrainerOptions& options = {});

  Job& job() { return job_; }
  std::uint64_t iteration() const { return job_.iteration(); }
  // One iteration of all keys.
  Status Iterate();
  // Until so many iterations are complete.
  Status TrainUntil(std::uint64_t iterations);
  // Of all keys, one after the other.
  std::vector<std::byte> Parameters() const;

 private:
  explicit Trainer(Job job) : job_(std::move(job)) {}
  Status AddKeys(const TrainerOptions& options);

  Job job_;
  std::vector<Key> keys_;
};

// What all ranks of a job of threads came to; a message if they failed or differ.
struct Trained {
  std::vector<std::byte> parameters;
  std::string problem;
};
// Runs a whole job without disturbances: what a disturbed one must come to.
Trained TrainUndisturbed(const std::string& endpoint, const JobOptions& job,
                         std::uint64_t iterations, const TrainerOptions& options = {});
// Across racks: one endpoint of each, to which ranks are dealt in equal parts.
Trained TrainUndisturbed(const std::vector<std::string>& endpoints, const JobOptions& job,
                         std::uint64_t iterations, const TrainerOptions& options = {});

}  // namespace phub::process
