#include "common/base/mapped_memory.h"

#include <sys/mman.h>

#include <utility>

#include "common/base/check.h"

namespace phub {

MappedMemory MappedMemory::Allocate(std::size_t bytes, Backing backing) {
  MappedMemory memory;
  if (bytes == 0) return memory;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
  flags |= backing == Backing::kPrefault ? MAP_POPULATE : MAP_NORESERVE;
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (address == MAP_FAILED) return memory;
  memory.data_ = static_cast<std::byte*>(address);
  memory.bytes_ = bytes;
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
