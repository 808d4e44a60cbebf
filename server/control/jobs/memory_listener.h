// Who learns of the memory that jobs have, so that devices (RDMA) can be made to know it.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "common/base/ids.h"

namespace phub::server {

// Becomes true once; then control's doorbell rings.
using DoneFlag = std::shared_ptr<const std::atomic<bool>>;

// Called with control's lock held. Work that takes time is done on another thread: then the call
// returns a flag that says when it is done, else null.
class JobMemoryListener {
 public:
  virtual ~JobMemoryListener() = default;
  // Replies are sent from [data, data + bytes) until OnReleased; `owner` keeps it for longer.
  virtual DoneFlag OnParameters(Incarnation incarnation, std::byte* data, std::size_t bytes,
                                std::shared_ptr<const void> owner) = 0;
  // The same for what core loop `core` sends to other racks in addition to parameters: partial
  // sums.
  virtual DoneFlag OnSums(Incarnation incarnation, CoreIndex core, std::byte* data,
                          std::size_t bytes, std::shared_ptr<const void> owner) = 0;
  // The job has ended. The flag says when the listener holds none of its memory.
  virtual DoneFlag OnReleased(Incarnation incarnation) = 0;
};

}  // namespace phub::server
