// Memory for a thread's arrays, in small or huge pages, so that the effect of the page size can be
// measured. The destructor frees it. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace phub::bench {

enum class Pages : std::uint8_t {
  kSmall,  // the kernel's ordinary pages, never merged into huge pages
  kHuge,   // as many 2 MiB pages as the kernel provides
};

class Arena {
 public:
  // Pages are allocated on first touch. Fails if the kernel refuses.
  static absl::StatusOr<Arena> Create(std::size_t bytes, Pages pages);
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&&) = delete;

  std::byte* data() const { return data_; }  // aligned to 2 MiB
  std::size_t bytes() const { return bytes_; }

 private:
  Arena() = default;
  void* mapped_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace phub::bench
