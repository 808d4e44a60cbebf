// A training run, either in one process or as one rank of a phub job. Both give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "client/examples/digits/data.h"

namespace digits {

struct Settings {
  std::size_t world_size = 4;
  std::size_t racks = 1;        // number of racks, 1 or 2; only for TrainSerially()
  std::size_t batch_size = 32;  // digits per rank and iteration
  std::size_t iterations = 600;
  double learning_rate = 0.1;  // divided by 10 in the last quarter of the iterations
  double momentum = 0.9;
  double weight_decay = 1e-4;
  bool quiet = false;  // no progress line
};

// The learning rate of an iteration; the same on every rank.
double LearningRateAt(const Settings& settings, std::size_t iteration);

struct Trained {
  std::vector<std::vector<float>> tensors;  // the final parameters
  std::size_t correct = 0;                  // correctly classified test digits
  std::string transports;                   // the transports that a worker used
};

// Trains in one process: does the work of every rank in turn, and adds the gradients in rank order,
// first within racks, as phub guarantees.
Trained TrainSerially(const Settings& settings, const DataSet& data);

struct Place {
  std::string endpoint;  // the daemon's: "127.0.0.1:7700"
  std::string job;
  std::size_t rank = 0;
  std::string transport = "auto";  // or "shm", "tcp", "verbs"
  bool restart = false;            // wait for a worker that dies; it may be restarted
  std::string plan;                // not empty: train in all racks, exchanging with this plan
  // Update only after all gradients of an iteration are summed. It can then be clipped or skipped.
  bool apply_iteration = false;
  double clip_norm = 0.0;  // 0: not clipped
  bool skip_nonfinite = false;
};

// Trains as one rank of a job. Returns false and sets `error` if the job or the connection fails.
bool TrainAsWorker(const Settings& settings, const Place& place, const DataSet& data,
                   Trained& trained, std::string& error);

// Prints to standard error "iteration 120/600 loss 0.21 accuracy 0.94 34000 digits/s". On a
// terminal it rewrites one line, otherwise it prints a line for each tenth of the iterations.
class Progress {
 public:
  explicit Progress(const Settings& settings);
  // Adds the results of one rank and iteration. digits: number of digits of the whole job.
  void Add(std::size_t iteration, double loss_sum, std::size_t correct, std::size_t digits_of_rank,
           std::size_t digits);

 private:
  const std::size_t iterations_;
  const bool quiet_;
  const bool terminal_;
  std::int64_t printed_ns_;
  double loss_sum_ = 0;  // this and the following: since the last print
  std::size_t correct_ = 0;
  std::size_t digits_of_rank_ = 0;
  std::size_t digits_ = 0;
};

}  // namespace digits
