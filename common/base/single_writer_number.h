// For counters: one thread adds, any thread reads.
#pragma once

#include <atomic>
#include <cstdint>

namespace phub {

// A number that one thread writes and any thread reads.
class SingleWriterNumber {
 public:
  // Writer thread only: not an atomic read-modify-write, therefore as cheap as a plain add.
  void Add(std::uint64_t value = 1) { Set(Get() + value); }
  void Subtract(std::uint64_t value = 1) { Set(Get() - value); }
  void Set(std::uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  std::uint64_t Get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

}  // namespace phub
