#include "bench/peers/peer_memory.h"

#include <cstdlib>
#include <cstring>

#include "bench/peers/momentum.h"
#include "bench/rank/traffic.h"
#include "bench/rank/values.h"

namespace phub::bench {

PeerMemory::PeerMemory(const RankArguments& arguments, bool separate_sums)
    : sizes_(arguments.sizes),
      element_count_(arguments.element_count()),
      mean_factor_(1.0F / static_cast<float>(arguments.world)),
      gradients_(Allocate()) {
  std::uint64_t offset = 0;
  for (const std::uint64_t size : sizes_) {
    offsets_.push_back(offset);
    offset += size;
  }
  if (separate_sums) separate_sums_ = Allocate();
  sums_ = separate_sums ? separate_sums_.get() : gradients_.get();
  if (arguments.work != Work::kUpdate) return;
  parameters_ = Allocate();
  momentum_ = Allocate();
}

void PeerMemory::SetParameters(const float* initial) {
  if (parameters_) std::memcpy(parameters_.get(), initial, element_count_ * sizeof(float));
}

void PeerMemory::Update(std::size_t tensor, std::uint64_t count) const {
  if (!parameters_) return;
  const std::uint64_t offset = offsets_[tensor];
  CountUpdate(5 * count * sizeof(float));  // three arrays read, two written
  ApplyMomentum(sums_ + offset, parameters_.get() + offset, momentum_.get() + offset, count,
                mean_factor_, static_cast<float>(kLearningRate), static_cast<float>(kMomentum));
}

void PeerMemory::ForgetMomentum() const {
  if (momentum_) std::memset(momentum_.get(), 0, element_count_ * sizeof(float));
}

void PeerMemory::Free::operator()(float* data) const { std::free(data); }

// Touched here, so that no page fault is timed.
PeerMemory::Buffer PeerMemory::Allocate() const {
  constexpr std::size_t kAlignmentBytes = 64;
  const std::size_t bytes =
      (element_count_ * sizeof(float) + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
  Buffer buffer(static_cast<float*>(std::aligned_alloc(kAlignmentBytes, bytes)));
  if (!buffer) Fail("out of memory");
  std::memset(buffer.get(), 0, bytes);
  return buffer;
}

}  // namespace phub::bench
