// A job that computes while it exchanges: the bench of overlap (harness/overlap.py).
//
// An iteration is the backward pass and then the forward pass of the next iteration, so that no
// exchange is in flight at its beginning and end:
//
//   backward, last layer to first    reads parameters and activations, writes the layer's
//                                    gradients, and starts their exchange
//   forward, first layer to last     waits for the layer's parameters, reads them and activations
//
// A layer is a tensor. There are two kinds of computation. Compute::kMemory runs loops on this core
// that stream through more memory than the caches hold. They compute exactly the gradients that
// Values expects, so that every element of the result can be verified as in other benches.
// Compute::kDevice waits as if for an accelerator, equally long for each layer; the core is idle
// meanwhile, and the gradients do not change.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/rank/arguments.h"
#include "bench/rank/values.h"

namespace phub::bench {

class Exchanger;

// The times within an iteration.
struct IterationTimes {
  std::uint64_t iterations = 0;
  // Computation alone. The second field is the thread's own CPU time: it leaves out time when the
  // thread was not scheduled, but includes slower answers of memory.
  std::int64_t compute_ns = 0;
  std::int64_t compute_cpu_ns = 0;
  std::int64_t first_wait_ns = 0;  // the forward pass's first wait
  std::int64_t wait_ns = 0;        // the waits of all layers
};

class TrainingJob {
 public:
  // REQUIRES: after exchanger.Open().
  TrainingJob(const RankArguments& arguments, const Values& values, Exchanger& exchanger);

  void Iterate();
  // Calls Fail() if the computed gradients are wrong.
  void VerifyGradients() const;

  void ForgetTimes() { times_ = {}; }
  const IterationTimes& times() const { return times_; }

 private:
  struct Layer {
    std::uint64_t size = 0;
    const float* expected = nullptr;  // the layer's expected gradients
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
  std::vector<float> activations_;   // all zeros, used cyclically
  std::uint64_t cursor_ = 0;         // the current position in activations_
  std::int64_t device_free_ns_ = 0;  // when the device finishes its queued work
  IterationTimes times_;
};

}  // namespace phub::bench
