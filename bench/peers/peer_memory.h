// Memory and update shared by the ranks of all peers: a flat buffer each for gradients, sums,
// parameters and momentum, and the update that each worker computes after an all-reduce.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "bench/rank/arguments.h"

namespace phub::bench {

class PeerMemory {
 public:
  // `separate_sums`: false for a system that sums in place of the gradients.
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

  // For the update workload: SGD with momentum from the sums, over `count` elements starting at the
  // tensor's first. Uses kLearningRate and kMomentum; vectorised for this machine.
  void Update(std::size_t tensor, std::uint64_t count) const;
  void ForgetMomentum() const;
  // The tolerance for peers' updates. The compiler may use fused multiply-adds, and the update
  // multiplies by 1/n where the definition divides.
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
