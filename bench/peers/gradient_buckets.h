// Groups tensors into buckets like PyTorch's DistributedDataParallel: 25 MB of adjacent tensors,
// from the last tensor to the first. A bucket is exchanged once all its tensors are started. A
// separate thread exchanges the buckets one by one while the caller computes the next.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace phub::bench {

class GradientBuckets {
 public:
  // `exchange` is called on that thread, with the first tensor of a bucket and the number of
  // elements of all its tensors, which are contiguous.
  GradientBuckets(const std::vector<std::uint64_t>& sizes,
                  std::function<void(std::size_t first, std::uint64_t count)> exchange);
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  // Must be called for every tensor once per exchange, in backward order.
  void Start(std::size_t tensor);
  // Blocks until the tensor's bucket is exchanged.
  void Wait(std::size_t tensor);

 private:
  struct Bucket {
    std::size_t first = 0;
    std::uint64_t count = 0;
    std::uint64_t started = 0;  // the number of exchanges
    std::uint64_t done = 0;
  };
  void Run();

  const std::function<void(std::size_t, std::uint64_t)> exchange_;
  std::vector<Bucket> buckets_;         // in the order of their exchange
  std::vector<std::size_t> bucket_of_;  // by tensor
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace phub::bench
