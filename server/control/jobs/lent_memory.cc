#include "server/control/jobs/lent_memory.h"

#include <fmt/format.h>

#include <utility>

namespace phub::server {

absl::StatusOr<LentMemory> LentMemory::Create(Kind kind, const char* name, std::size_t bytes,
                                              SharedMemory::Others others,
                                              SharedMemory::Pages pages,
                                              SharedMemory::ReleaseHook hook) {
  LentMemory memory;
  if (kind == Kind::kShared) {
    absl::StatusOr<SharedMemory> shared = SharedMemory::Create(name, bytes, others, pages);
    if (!shared.ok()) return shared.status();
    shared->SetReleaseHook(std::move(hook));
    memory.shared_ = std::make_shared<const SharedMemory>(*std::move(shared));
    return memory;
  }
  memory.ordinary_ = MappedMemory::Allocate(bytes, pages == SharedMemory::Pages::kNow
                                                       ? MappedMemory::Backing::kPrefault
                                                       : MappedMemory::Backing::kLater);
  if (memory.ordinary_) return memory;
  return absl::ResourceExhaustedError(fmt::format("allocation of {} bytes failed", bytes));
}

}  // namespace phub::server
