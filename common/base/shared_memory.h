// Memory that two processes map: a sealed memfd.
//
// The daemon creates it (Create) and passes the descriptor to a client, which maps it (Map). Two
// seals protect it:
// - against shrinking: no process can cause a SIGBUS in another by removing pages;
// - against growing: the size always equals the accounted size.
// The daemon never maps descriptors that a client created, because the client could omit the seals.
//
// Cold calls; any thread. The memory has no owner except the holder of the object; other processes
// that map it may access it at any time.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/descriptor.h"

namespace phub {

class SharedMemory {
 public:
  // What a receiver of the descriptor may do. kRead forbids later writable mappings and writes
  // through the descriptor (F_SEAL_FUTURE_WRITE); the creator's own mapping stays writable.
  enum class Others { kWrite, kRead };
  enum class Access { kWrite, kRead };
  enum class Size { kExact, kAtLeast };
  enum class Pages { kNow, kLater };
  // Gets the descriptor and the size of memory that its owner has unmapped.
  using ReleaseHook = std::function<void(Descriptor, std::size_t)>;

  SharedMemory() = default;
  // Creates `bytes` of zeros, mapped read-write, in huge pages if the host has them. /proc shows
  // `name`. `pages`: prefault now, or later with TakePages (common/base/mapped_memory.h). Errors:
  // kInvalidArgument (0 bytes), kResourceExhausted.
  static absl::StatusOr<SharedMemory> Create(const char* name, std::size_t bytes, Others others,
                                             Pages pages = Pages::kNow);
  // Maps the first `bytes` of memory that the daemon created. kFailedPrecondition unless it is
  // sealed and its size fits `size`. kResourceExhausted: no memory or no memory map is left.
  static absl::StatusOr<SharedMemory> Map(const Descriptor& descriptor, std::size_t bytes,
                                          Access access, Size size = Size::kExact);
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  bool writable() const { return writable_; }  // through this mapping
  // For passing to another process. -1 once closed, and for memory from Map().
  int descriptor() const { return descriptor_.get(); }
  // Call once no other process will receive the descriptor. The mapping remains.
  void CloseDescriptor() { descriptor_.Reset(); }
  // The destructor calls it, on any thread, unless the descriptor is closed.
  void SetReleaseHook(ReleaseHook hook) { hook_ = std::move(hook); }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  Descriptor descriptor_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  bool writable_ = false;
  ReleaseHook hook_;  // may be empty
};

}  // namespace phub
