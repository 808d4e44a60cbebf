// Large mappings backed by huge pages. Eight or more streams over 4 KiB pages can run at half the
// memory bandwidth because of TLB misses. Best effort: the mapping uses small pages on a host
// without huge pages. Cold calls; any thread.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace phub {

// The huge page size of x86-64, and of aarch64 with 4 KiB pages. On other hosts only the speedup
// is lost.
inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

// mmap of `descriptor` (-1: none) from offset 0. The address is aligned to huge pages if the
// mapping is at least one huge page long. On failure returns MAP_FAILED and sets errno.
void* MapForHugePages(std::size_t bytes, int protection, int flags, int descriptor);

// Unmaps [address, address + bytes). If the process has as many memory maps as it may have
// (vm.max_map_count), the kernel refuses to split one; only the pages are freed then, and the
// address space stays reserved.
void UnmapMemory(void* address, std::size_t bytes);

// Allocates the full huge pages inside [address, address + bytes), which must be writable. Call it
// before anything touches the memory: pages that already exist are copied.
void TakeHugePages(void* address, std::size_t bytes);

}  // namespace phub
