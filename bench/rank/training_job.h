// A job that computes while it exchanges: the bench of overlap (harness/overlap.py).
//
// An iteration is the backward pass and then the forward pass of the next iteration, so that it
// begins and ends with nothing under way:
//
//   backward, last layer to first    reads parameters and activations, writes the layer's
//                                    gradients, and starts their exchange
//   forward, first layer to last     waits for the layer's parameters, reads them and activations
//
// A layer is a tensor. Computation is one of two. Compute::kMemory: loops on this core that stream
// through more memory than caches hold, and come to exactly the gradients that Values expects, so
// that every element of the result can be verified as in any other bench. Compute::kDevice: the
// worker waits for an accelerator, as long for each layer; the core is free meanwhile, and the
// gradients stay as they are.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/rank/arguments.h"
#include "bench/rank/values.h"

namespace phub::bench {

class Exchanger;

// What an iteration consists of.
struct IterationTimes {
  std::uint64_t iterations = 0;
  // In computation alone. The second is the thread's own CPU time: what it was not scheduled is
  // left out, that memory answers more slowly is not.
  std::int64_t compute_ns = 0;
  std::int64_t compute_cpu_ns = 0;
  std::int64_t first_wait_ns = 0;  // the first layer's wait, with which forward begins
  std::int64_t wait_ns = 0;        // of all layers
};

class TrainingJob {
 public:
  // REQUIRES: after exchanger.Open().
  TrainingJob(const RankArguments& arguments, const Values& values, Exchanger& exchanger);

  void Iterate();
  // Fails if the computation came to other gradients than it must.
  void VerifyGradients() const;

  void ForgetTimes() { times_ = {}; }
  const IterationTimes& times() const { return times_; }

 private:
  struct Layer {
    std::uint64_t size = 0;
    const float* expected = nullptr;  // of its gradients
    float* gradients = nullptr;
  };

  void Backward(const Layer& layer, const float* parameters);
  void Forward(const Layer& layer, const float* parameters);
  std::int64_t DeviceNs(int parts) const;
  float* NextActivations(std::uint64_t count);
  template <typename Computation>
  void Timed(const Computation& computation);

  const RankArguments& arguments_;
  Exchanger& exchanger_;
  std::vector<Layer> layers_;
  std::vector<float> expected_;
  std::vector<float> activations_;   // all zeros, walked through round and round
  std::uint64_t cursor_ = 0;         // in them
  std::int64_t device_free_ns_ = 0;  // when the device has done what it was given
  IterationTimes times_;
};

}  // namespace phub::bench
