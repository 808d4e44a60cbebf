// Anonymous memory straight from the kernel: zero-filled, page aligned, backed on first touch
// unless prefaulted, given back whole when destroyed.
#pragma once

#include <cstddef>

namespace phub {

class MappedMemory {
 public:
  // kLater: charged by the system, and backed by TakePages.
  enum class Backing { kOnTouch, kPrefault, kLater };

  MappedMemory() = default;
  // Empty on failure (operator bool tells); 0 bytes gives an empty object too.
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

// Takes the pages of [data, data + bytes), which is mapped for writing and which nobody uses yet,
// in huge pages where there are any. False if the system does not give them. Any thread.
[[nodiscard]] bool TakePages(std::byte* data, std::size_t bytes);

}  // namespace phub
