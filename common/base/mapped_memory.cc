#include "common/base/mapped_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "common/base/check.h"
#include "common/base/huge_pages.h"

namespace phub {

MappedMemory MappedMemory::Allocate(std::size_t bytes, Backing backing) {
  MappedMemory memory;
  if (bytes == 0) return memory;
  const bool prefault = backing == Backing::kPrefault;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (prefault ? 0 : MAP_NORESERVE);
  void* address = MapForHugePages(bytes, PROT_READ | PROT_WRITE, flags, -1);
  if (address == MAP_FAILED) return memory;
  memory.data_ = static_cast<std::byte*>(address);
  memory.bytes_ = bytes;
  if (!prefault) return memory;
  TakeHugePages(address, bytes);
  // Takes the rest, with an error and not a signal if there is none. Before Linux 5.14: on touch.
  if (madvise(address, bytes, MADV_POPULATE_WRITE) != 0 && errno != EINVAL) return {};
  return memory;
}

MappedMemory::~MappedMemory() {
  if (data_ == nullptr) return;
  const int result = munmap(data_, bytes_);
  PHUB_CHECK(result == 0, "munmap of {} bytes failed", bytes_);
}

MappedMemory::MappedMemory(MappedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace phub
