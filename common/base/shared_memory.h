// Memory that two processes map: a sealed memfd.
//
// The daemon makes it (Create) and passes the descriptor; a client maps what it was given (Map).
// Sealed against shrinking, so no process can take pages away under another's loads (SIGBUS), and
// against growing, so what was charged is what there is. Descriptors that a client made are never
// mapped: their seals would be the client's to leave out.
//
// Cold calls; any thread. The memory itself has no owner but whoever holds the object.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "common/base/descriptor.h"

namespace phub {

class SharedMemory {
 public:
  // What whoever receives the descriptor may do. kRead holds against any later mapping or write
  // through the descriptor (F_SEAL_FUTURE_WRITE); the maker's own mapping stays writable.
  enum class Others { kWrite, kRead };
  enum class Access { kWrite, kRead };
  enum class Size { kExact, kAtLeast };
  enum class Pages { kNow, kLater };

  SharedMemory() = default;
  // `bytes` of zeros, mapped read-write; in huge pages where the host gives them. `name` is what
  // /proc shows. `pages`: taken now, or later by TakePages (common/base/mapped_memory.h). Errors:
  // kInvalidArgument (0 bytes), kResourceExhausted.
  static absl::StatusOr<SharedMemory> Create(const char* name, std::size_t bytes, Others others,
                                             Pages pages = Pages::kNow);
  // Maps memory that the daemon made, so many bytes of it. kFailedPrecondition unless it is sealed
  // and of that size.
  static absl::StatusOr<SharedMemory> Map(const Descriptor& descriptor, std::size_t bytes,
                                          Access access, Size size = Size::kExact);
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  bool writable() const { return writable_; }  // through this mapping
  // For passing on; -1 when it was closed, and for memory that was mapped from a descriptor.
  int descriptor() const { return descriptor_.get(); }
  // Once nobody else will be given it. The memory stays.
  void CloseDescriptor() { descriptor_.Reset(); }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  Descriptor descriptor_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  bool writable_ = false;
};

}  // namespace phub
