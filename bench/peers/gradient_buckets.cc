#include "bench/peers/gradient_buckets.h"

#include <utility>

namespace phub::bench {
namespace {

constexpr std::uint64_t kBucketElements = (std::uint64_t{25} << 20) / sizeof(float);

}  // namespace

GradientBuckets::GradientBuckets(const std::vector<std::uint64_t>& sizes,
                                 std::function<void(std::size_t, std::uint64_t)> exchange)
    : exchange_(std::move(exchange)), bucket_of_(sizes.size()) {
  for (std::size_t tensor = sizes.size(); tensor-- > 0;) {
    if (buckets_.empty() || buckets_.back().count + sizes[tensor] > kBucketElements)
      buckets_.emplace_back();
    buckets_.back().first = tensor;
    buckets_.back().count += sizes[tensor];
    bucket_of_[tensor] = buckets_.size() - 1;
  }
  thread_ = std::thread([this] { Run(); });
}

GradientBuckets::~GradientBuckets() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void GradientBuckets::Start(std::size_t tensor) {
  Bucket& bucket = buckets_[bucket_of_[tensor]];
  if (tensor != bucket.first) return;  // the bucket's other tensors were started before
  {
    const std::lock_guard lock(mutex_);
    ++bucket.started;
  }
  changed_.notify_all();
}

void GradientBuckets::Wait(std::size_t tensor) {
  const Bucket& bucket = buckets_[bucket_of_[tensor]];
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return bucket.done == bucket.started; });
}

void GradientBuckets::Run() {
  for (std::size_t next = 0;; next = (next + 1) % buckets_.size()) {
    Bucket& bucket = buckets_[next];
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopping_ || bucket.done < bucket.started; });
    if (stopping_) return;
    lock.unlock();
    exchange_(bucket.first, bucket.count);
    lock.lock();
    ++bucket.done;
    changed_.notify_all();
  }
}

}  // namespace phub::bench
