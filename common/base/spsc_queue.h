// A bounded queue between exactly one producer thread and one consumer thread. The control plane
// and core loops communicate over it. A push to a full queue returns false; the queue never grows.
// Each side caches the other side's index, and each index has its own cache line (as in rigtorp's
// SPSCQueue and the MCRingBuffer paper).
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <memory>
#include <utility>

#include "common/base/check.h"

namespace phub {

inline constexpr std::size_t kCacheLineBytes = 64;

template <typename T>
class SpscQueue {
 public:
  explicit SpscQueue(std::size_t capacity_min)
      : mask_(std::bit_ceil(capacity_min) - 1), items_(std::make_unique<T[]>(mask_ + 1)) {
    PHUB_CHECK(capacity_min > 0);
  }
  SpscQueue(const SpscQueue&) = delete;
  SpscQueue& operator=(const SpscQueue&) = delete;

  // Producer thread. False if full; the item is then unchanged.
  [[nodiscard]] bool TryPush(const T& item) { return Push(item); }
  [[nodiscard]] bool TryPush(T&& item) { return Push(std::move(item)); }

  // Consumer thread. False if empty.
  [[nodiscard]] bool TryPop(T& item) {
    const std::size_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_cache_) {
      tail_cache_ = tail_.load(std::memory_order_acquire);
      if (head == tail_cache_) return false;
    }
    item = std::move(items_[head & mask_]);
    head_.store(head + 1, std::memory_order_release);
    return true;
  }

  // Producer or consumer thread. On the consumer's side true may already be outdated.
  bool Empty() const {
    return head_.load(std::memory_order_acquire) == tail_.load(std::memory_order_acquire);
  }
  std::size_t capacity() const { return mask_ + 1; }

 private:
  template <typename Item>
  bool Push(Item&& item) {
    const std::size_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_cache_ > mask_) {
      head_cache_ = head_.load(std::memory_order_acquire);
      if (tail - head_cache_ > mask_) return false;
    }
    items_[tail & mask_] = std::forward<Item>(item);
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }

  const std::size_t mask_;
  const std::unique_ptr<T[]> items_;
  alignas(kCacheLineBytes) std::atomic<std::size_t> head_{0};
  std::size_t tail_cache_{0};  // consumer's copy of tail_
  alignas(kCacheLineBytes) std::atomic<std::size_t> tail_{0};
  std::size_t head_cache_{0};  // producer's copy of head_
};

}  // namespace phub
