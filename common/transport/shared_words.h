// Copies out of memory that a peer may change at any time: each word is loaded once, and the
// compiler may neither look again nor leave the copy out, as it might with memcpy. Any thread.
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
