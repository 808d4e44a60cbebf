#include "common/base/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "common/base/errno_text.h"
#include "common/base/huge_pages.h"
#include "common/base/shortage.h"

namespace phub {
namespace {

#ifndef MFD_NOEXEC_SEAL
constexpr unsigned kNoExecSeal = 8u;  // since Linux 6.3; older glibc headers lack it
#else
constexpr unsigned kNoExecSeal = MFD_NOEXEC_SEAL;
#endif

absl::Status NoMemory(const char* name, std::size_t bytes, const char* what, int error) {
  return absl::ResourceExhaustedError(fmt::format("cannot {} {} bytes of shared memory ({}): {}",
                                                  what, bytes, name, MemoryErrorText(error)));
}

// Not executable if the kernel supports that flag: hosts may require it (vm.memfd_noexec).
Descriptor MakeMemfd(const char* name) {
  Descriptor memfd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecSeal));
  if (memfd || errno != EINVAL) return memfd;
  return Descriptor(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
}

// Prefaults `first_bytes` now: a lack of memory gives an error here instead of a signal on first
// touch. Linux before 5.14 cannot do that; there it allocates all of `bytes`. Returns 0 or errno.
int Prefault(int descriptor, void* address, std::size_t first_bytes, std::size_t bytes) {
  if (madvise(address, first_bytes, MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;
  return posix_fallocate(descriptor, 0, static_cast<off_t>(bytes));
}

}  // namespace

absl::StatusOr<SharedMemory> SharedMemory::Create(const char* name, std::size_t bytes,
                                                  Others others, Pages pages) {
  if (bytes == 0) return absl::InvalidArgumentError("cannot create shared memory of 0 bytes");
  SharedMemory memory;
  memory.descriptor_ = MakeMemfd(name);
  if (!memory.descriptor_) return NoMemory(name, bytes, "create", errno);
  const int descriptor = memory.descriptor_.get();
  if (ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
    return NoMemory(name, bytes, "reserve", errno);
  }
  void* address = MapForHugePages(bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor);
  if (address == MAP_FAILED) return NoMemory(name, bytes, "map", errno);
  memory.data_ = static_cast<std::byte*>(address);
  memory.bytes_ = bytes;
  memory.writable_ = true;
  if (pages == Pages::kNow) TakeHugePages(address, bytes);
  const std::size_t now_bytes = pages == Pages::kNow ? bytes : 1;
  if (const int error = Prefault(descriptor, address, now_bytes, bytes); error != 0) {
    return NoMemory(name, bytes, "allocate", error);
  }
  int seals = F_SEAL_SHRINK | F_SEAL_GROW;
  if (others == Others::kRead) seals |= F_SEAL_FUTURE_WRITE;
  if (fcntl(descriptor, F_ADD_SEALS, seals) != 0 ||
      fcntl(descriptor, F_ADD_SEALS, F_SEAL_SEAL) != 0) {
    return NoMemory(name, bytes, "seal", errno);
  }
  return memory;
}

absl::StatusOr<SharedMemory> SharedMemory::Map(const Descriptor& descriptor, std::size_t bytes,
                                               Access access, Size size) {
  const int seals = fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::FailedPreconditionError(
        "the peer's shared memory is not sealed against shrinking (F_SEAL_SHRINK)");
  }
  struct stat status {};
  const bool known = fstat(descriptor.get(), &status) == 0 && bytes > 0;
  const auto wanted = static_cast<off_t>(bytes);
  if (!known || status.st_size < wanted || (size == Size::kExact && status.st_size != wanted)) {
    return absl::FailedPreconditionError(fmt::format(
        "the peer's shared memory has {} bytes, but the peer announced {}", status.st_size, bytes));
  }
  const bool write = access == Access::kWrite;
  const int protection = write ? PROT_READ | PROT_WRITE : PROT_READ;
  void* address = MapForHugePages(bytes, protection, MAP_SHARED | MAP_POPULATE, descriptor.get());
  if (address == MAP_FAILED) {
    const int error = errno;
    const std::string action =
        fmt::format("map {} bytes of shared memory for {}", bytes, write ? "writing" : "reading");
    if (error == ENOMEM || error == EAGAIN) return MemoryShortage(action, error);
    return absl::FailedPreconditionError(fmt::format("cannot {}: {}", action, ErrnoText(error)));
  }
  SharedMemory memory;
  memory.data_ = static_cast<std::byte*>(address);
  memory.bytes_ = bytes;
  memory.writable_ = write;
  return memory;
}

SharedMemory::~SharedMemory() {
  if (data_ == nullptr) return;
  UnmapMemory(data_, bytes_);
  if (hook_ && descriptor_) hook_(std::move(descriptor_), bytes_);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : descriptor_(std::move(other.descriptor_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      writable_(std::exchange(other.writable_, false)),
      hook_(std::exchange(other.hook_, nullptr)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(writable_, other.writable_);
  std::swap(hook_, other.hook_);
  return *this;
}

}  // namespace phub
