// Tensors in buckets, as PyTorch's DistributedDataParallel has them: 25 MB of neighbours, from the
// last tensor on. A bucket is exchanged once all of its tensors are started, one bucket after the
// other, on a thread of its own, while its caller computes the next.
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
  // `exchange`: called on that thread, with the first tensor of a bucket and the elements of all of
  // it, which lie end to end.
  GradientBuckets(const std::vector<std::uint64_t>& sizes,
                  std::function<void(std::size_t first, std::uint64_t count)> exchange);
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  // Every tensor once per exchange, in backward order.
  void Start(std::size_t tensor);
  // Until its bucket is exchanged.
  void Wait(std::size_t tensor);

 private:
  struct Bucket {
    std::size_t first = 0;
    std::uint64_t count = 0;
    std::uint64_t started = 0;  // exchanges
    std::uint64_t done = 0;
  };
  void Run();

  const std::function<void(std::size_t, std::uint64_t)> exchange_;
  std::vector<Bucket> buckets_;         // in the order of their exchange
  std::vector<std::size_t> bucket_of_;  // [tensor]
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace phub::bench
