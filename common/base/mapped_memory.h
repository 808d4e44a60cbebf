// Anonymous memory from the kernel: zero-filled, page-aligned, backed on first touch unless
// prefaulted, and unmapped on destruction.
#pragma once

#include <cstddef>

namespace phub {

class MappedMemory {
 public:
  // kLater: the system accounts for the memory now; TakePages prefaults it later.
  enum class Backing { kOnTouch, kPrefault, kLater };

  MappedMemory() = default;
  // Empty on failure and for 0 bytes (operator bool is false).
  static MappedMemory Allocate(std::size_t bytes, Backing backing);
  ~MappedMemory();
  MappedMemory(MappedMemory&& other) noexcept;
  MappedMemory& operator=(MappedMemory&& other) noexcept;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Prefaults [data, data + bytes), with huge pages if the host has them. REQUIRES: the range is
// writable and not in use yet. False if the system is out of memory. Any thread.
[[nodiscard]] bool TakePages(std::byte* data, std::size_t bytes);

}  // namespace phub
