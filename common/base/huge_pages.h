// Large mappings that the processor can address in huge pages: eight or more streams over 4 KiB
// pages can run at half the speed of memory, for want of translations. Best effort: a host that
// gives no huge pages gives small ones. Cold calls; any thread.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace phub {

// Of x86-64, and of aarch64 with 4 KiB pages. Elsewhere nothing is lost but the gain.
inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

// mmap of `descriptor` (-1: none) from its start, at an address that suits huge pages if one fits.
// MAP_FAILED with errno.
void* MapForHugePages(std::size_t bytes, int protection, int flags, int descriptor);

// Makes the whole huge pages within [address, address + bytes), which is writable, huge, and takes
// them. To be called before anything is there: what has pages already is copied.
void TakeHugePages(void* address, std::size_t bytes);

}  // namespace phub
