// Copies from memory that a peer may change at any time. Each word is loaded exactly once; unlike
// with memcpy, the compiler may neither repeat a load nor omit the copy. Any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace phub::transport {

template <typename T>
T LoadShared(const T& value, std::memory_order order) {
  return std::atomic_ref<T>(const_cast<T&>(value)).load(order);  // C++20 has no ref to const
}

inline void CopyWords(const std::uint64_t* from, std::uint64_t* to, std::size_t words) {
  for (std::size_t i = 0; i < words; ++i) to[i] = LoadShared(from[i], std::memory_order_relaxed);
}

}  // namespace phub::transport
