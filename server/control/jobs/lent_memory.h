// Memory that control lends to core loops, and that workers of this host may map as well.
//
// It is zero-filled. Its pages are prefaulted before a worker learns of it, because an allocation
// must not fail after admission. Only its bytes change. The object owns the memory.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "common/base/mapped_memory.h"
#include "common/base/shared_memory.h"

namespace phub::server {

class LentMemory {
 public:
  enum class Kind { kShared, kOrdinary };

  LentMemory() = default;
  // `name`, `others` and `hook` apply only to shared memory. RESOURCE_EXHAUSTED if the allocation
  // fails.
  static absl::StatusOr<LentMemory> Create(Kind kind, const char* name, std::size_t bytes,
                                           SharedMemory::Others others,
                                           SharedMemory::Pages pages = SharedMemory::Pages::kNow,
                                           SharedMemory::ReleaseHook hook = {});

  std::byte* data() const { return shared_ ? shared_->data() : ordinary_.data(); }
  std::size_t bytes() const { return shared_ ? shared_->bytes() : ordinary_.bytes(); }
  // Null for ordinary memory.
  const std::shared_ptr<const SharedMemory>& shared() const { return shared_; }

 private:
  std::shared_ptr<const SharedMemory> shared_;
  MappedMemory ordinary_;
};

}  // namespace phub::server
