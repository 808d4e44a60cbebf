#include "bench/kernels/arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "common/base/units.h"

namespace phub::bench {
namespace {

constexpr std::size_t kHugePageBytes = 2 * kMebibyte;

}  // namespace

absl::StatusOr<Arena> Arena::Create(std::size_t bytes, Pages pages) {
  Arena arena;
  const std::size_t mapped_bytes = bytes + kHugePageBytes;  // extra room for alignment
  void* const mapped =
      mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return absl::ErrnoToStatus(errno, "mmap");
  arena.mapped_ = mapped;
  arena.mapped_bytes_ = mapped_bytes;
  if (madvise(mapped, mapped_bytes, pages == Pages::kHuge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) != 0) {
    return absl::ErrnoToStatus(
        errno, pages == Pages::kHuge ? "madvise(MADV_HUGEPAGE)" : "madvise(MADV_NOHUGEPAGE)");
  }
  const auto address = reinterpret_cast<std::uintptr_t>(mapped);
  const std::uintptr_t skipped = (kHugePageBytes - address % kHugePageBytes) % kHugePageBytes;
  arena.data_ = static_cast<std::byte*>(mapped) + skipped;
  arena.bytes_ = bytes;
  return arena;
}

Arena::~Arena() {
  if (mapped_ != nullptr) munmap(mapped_, mapped_bytes_);
}

Arena::Arena(Arena&& other) noexcept
    : mapped_(std::exchange(other.mapped_, nullptr)),
      mapped_bytes_(other.mapped_bytes_),
      data_(other.data_),
      bytes_(other.bytes_) {}

}  // namespace phub::bench
