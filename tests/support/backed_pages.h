// How much of a mapping is backed by memory.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace phub {

inline std::size_t PageBytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

// The number of pages of the range that are in memory; -1 if the range is not mapped.
inline int BackedPages(std::byte* address, std::size_t bytes) {
  std::vector<unsigned char> pages((bytes + PageBytes() - 1) / PageBytes());
  if (mincore(address, bytes, pages.data()) != 0) return -1;
  return static_cast<int>(
      std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; }));
}

}  // namespace phub
