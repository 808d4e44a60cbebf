// What a training run is, and its two ways: in one process, or as one rank of a phub job. Both end
// with the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "client/examples/digits/data.h"

namespace digits {

struct Settings {
  std::size_t world_size = 4;
  std::size_t racks = 1;        // 1 or 2 that the ranks lie in; of TrainSerially
  std::size_t batch_size = 32;  // digits per rank and iteration
  std::size_t iterations = 600;
  double learning_rate = 0.1;  // a tenth of it in the last quarter of the iterations
  double momentum = 0.9;
  double weight_decay = 1e-4;
  bool quiet = false;  // no progress line
};

// The learning rate of an iteration: every rank computes the same.
double LearningRateAt(const Settings& settings, std::size_t iteration);

struct Trained {
  std::vector<std::vector<float>> tensors;  // the final parameters
  std::size_t correct = 0;                  // of the test digits
  std::string transports;                   // that a worker used
};

// One process that does the work of every rank, one after the other, and adds their gradients in
// rank order, within racks first, as phub promises to.
Trained TrainSerially(const Settings& settings, const DataSet& data);

struct Place {
  std::string endpoint;  // of the daemon: "127.0.0.1:7700"
  std::string job;
  std::size_t rank = 0;
  std::string transport = "auto";  // or "shm", "tcp"
  bool restart = false;            // a worker that dies is waited for, and may be started anew
  std::string plan;                // not empty: train in all racks, exchanging by this plan
  // Nothing is updated before a whole iteration is summed: then it may be clipped, or skipped.
  bool apply_iteration = false;
  double clip_norm = 0.0;  // 0: not clipped
  bool skip_nonfinite = false;
};

// One rank of a job. False, with `error` set, if the job or the connection fails.
bool TrainAsWorker(const Settings& settings, const Place& place, const DataSet& data,
                   Trained& trained, std::string& error);

// Prints to standard error "iteration 120/600 loss 0.21 accuracy 0.94 3.4e+04 digits/s": one line
// that is rewritten on a terminal, else a line for each tenth of the way.
class Progress {
 public:
  explicit Progress(const Settings& settings);
  // Of one rank and iteration; `digits` is what the whole job went through.
  void Add(std::size_t iteration, double loss_sum, std::size_t correct, std::size_t digits_of_rank,
           std::size_t digits);

 private:
  const std::size_t iterations_;
  const bool quiet_;
  const bool terminal_;
  std::int64_t printed_ns_;
  double loss_sum_ = 0;  // since the last print, as the rest
  std::size_t correct_ = 0;
  std::size_t digits_of_rank_ = 0;
  std::size_t digits_ = 0;
};

}  // namespace digits
