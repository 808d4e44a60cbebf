#include "common/base/mapped_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "common/base/huge_pages.h"

namespace phub {

MappedMemory MappedMemory::Allocate(std::size_t bytes, Backing backing) {
  MappedMemory memory;
  if (bytes == 0) return memory;
  const int reserve = backing == Backing::kOnTouch ? MAP_NORESERVE : 0;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | reserve;
  void* address = MapForHugePages(bytes, PROT_READ | PROT_WRITE, flags, -1);
  if (address == MAP_FAILED) return memory;
  memory.data_ = static_cast<std::byte*>(address);
  memory.bytes_ = bytes;
  if (backing == Backing::kPrefault && !TakePages(memory.data_, bytes)) return {};
  return memory;
}

bool TakePages(std::byte* data, std::size_t bytes) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t first = begin / page * page;
  const std::size_t whole = (begin + bytes - first + page - 1) / page * page;
  void* const address = data - (begin - first);
  TakeHugePages(address, whole);
  // Prefaults the rest. A lack of memory gives an error here instead of a signal on first touch.
  // Before Linux 5.14 the pages are backed on first touch.
  return madvise(address, whole, MADV_POPULATE_WRITE) == 0 || errno == EINVAL;
}

MappedMemory::~MappedMemory() {
  if (data_ != nullptr) UnmapMemory(data_, bytes_);
}

MappedMemory::MappedMemory(MappedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace phub
