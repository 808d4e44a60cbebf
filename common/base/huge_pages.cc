#include "common/base/huge_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "common/base/check.h"

namespace phub {
namespace {

#ifdef MADV_COLLAPSE
constexpr int kCollapse = MADV_COLLAPSE;
#else
constexpr int kCollapse = 25;  // since Linux 6.1; older glibc headers lack it
#endif

std::uintptr_t RoundUp(std::uintptr_t value) {
  return (value + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
}

void Unmap(std::uintptr_t begin, std::uintptr_t end) {
  if (begin != end) UnmapMemory(reinterpret_cast<void*>(begin), end - begin);
}

std::size_t WholePages(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace

void UnmapMemory(void* address, std::size_t bytes) {
  if (munmap(address, bytes) == 0) return;
  PHUB_CHECK(errno == ENOMEM, "munmap of {} bytes errno={}", bytes, errno);
  [[maybe_unused]] const int freed = madvise(address, bytes, MADV_DONTNEED);
}

void* MapForHugePages(std::size_t bytes, int protection, int flags, int descriptor) {
  if (bytes < kHugePageBytes) return mmap(nullptr, bytes, protection, flags, descriptor, 0);
  // Reserve enough address space to align the mapping, then unmap the excess.
  void* const reserved = mmap(nullptr, WholePages(bytes) + kHugePageBytes, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return MAP_FAILED;
  const auto begin = reinterpret_cast<std::uintptr_t>(reserved);
  const std::uintptr_t end = begin + WholePages(bytes) + kHugePageBytes;
  const std::uintptr_t aligned = RoundUp(begin);
  Unmap(begin, aligned);
  Unmap(aligned + WholePages(bytes), end);
  void* const mapped =
      mmap(reinterpret_cast<void*>(aligned), bytes, protection, flags | MAP_FIXED, descriptor, 0);
  if (mapped != MAP_FAILED) return mapped;
  const int error = errno;
  Unmap(aligned, aligned + WholePages(bytes));
  errno = error;
  return MAP_FAILED;
}

void TakeHugePages(void* address, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  const std::uintptr_t first = RoundUp(begin);
  const std::uintptr_t last = (begin + bytes) / kHugePageBytes * kHugePageBytes;
  if (first >= last) return;
  // MADV_HUGEPAGE is enough for anonymous memory. Shared memory needs MADV_COLLAPSE: most hosts
  // keep it in small pages (shmem_enabled).
  [[maybe_unused]] int advised = madvise(address, bytes, MADV_HUGEPAGE);
  for (std::uintptr_t page = first; page < last; page += kHugePageBytes) {
    void* const huge = reinterpret_cast<void*>(page);
    // Newer kernels (seen: 6.18) collapse shared memory only if a page is already present.
    if (madvise(huge, 1, MADV_POPULATE_WRITE) != 0) return;
    if (madvise(huge, kHugePageBytes, kCollapse) != 0) return;
  }
}

}  // namespace phub
