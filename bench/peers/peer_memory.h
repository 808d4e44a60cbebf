// What the ranks of the peers share: one flat buffer each of gradients, sums, parameters and
// momentum, and the update that every worker of an all-reduce computes for itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "bench/rank/arguments.h"

namespace phub::bench {

class PeerMemory {
 public:
  // `separate_sums`: false for a system that sums where the gradients are.
  PeerMemory(const RankArguments& arguments, bool separate_sums);

  void SetParameters(const float* initial);

  std::size_t tensor_count() const { return sizes_.size(); }
  std::uint64_t element_count() const { return element_count_; }
  std::uint64_t size(std::size_t tensor) const { return sizes_[tensor]; }
  float* gradients(std::size_t tensor = 0) const { return gradients_.get() + offsets_[tensor]; }
  float* sums(std::size_t tensor = 0) const { return sums_ + offsets_[tensor]; }
  float* results(std::size_t tensor = 0) const {
    return (parameters_ ? parameters_.get() : sums_) + offsets_[tensor];
  }

  // SGD with momentum from the sums, for the workload that wants it: `count` elements from the
  // tensor's first on. kLearningRate, kMomentum; vectorised for this very machine.
  void Update(std::size_t tensor, std::uint64_t count) const;
  void ForgetMomentum() const;
  // What peers' updates may differ by: the compiler may use fused multiply-adds, and a product with
  // 1/n where the definition divides.
  static constexpr double kToleranceUlps = 4;

 private:
  struct Free {
    void operator()(float* data) const;
  };
  using Buffer = std::unique_ptr<float, Free>;
  Buffer Allocate() const;

  const std::vector<std::uint64_t> sizes_;
  const std::uint64_t element_count_;
  const float mean_factor_;
  std::vector<std::uint64_t> offsets_;
  Buffer gradients_;
  Buffer separate_sums_;
  float* sums_ = nullptr;
  Buffer parameters_;  // empty for allreduce, as is momentum_
  Buffer momentum_;
};

}  // namespace phub::bench
