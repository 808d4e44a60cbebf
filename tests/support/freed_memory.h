// The amount of freed memory that a process keeps because of its compile options. Limits on a
// daemon's growth must allow for it.
#pragma once

#include <cstdint>

namespace phub {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr std::uint64_t kFreedBytesKept = 256 << 20;  // the sanitizer's quarantine
#else
inline constexpr std::uint64_t kFreedBytesKept = 0;
#endif

}  // namespace phub
