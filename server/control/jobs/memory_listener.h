// Notifies a listener of the memory of jobs, so that it can be registered with RDMA devices.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "common/base/ids.h"

namespace phub::server {

// Set once; then control's doorbell is rung.
using DoneFlag = std::shared_ptr<const std::atomic<bool>>;

// Called with control's lock held. A call that starts slow work on another thread returns a flag
// that reports when the work is done. Otherwise it returns null.
class JobMemoryListener {
 public:
  virtual ~JobMemoryListener() = default;
  // Replies are sent from [data, data + bytes) until OnReleased. `owner` keeps the memory alive.
  virtual DoneFlag OnParameters(Incarnation incarnation, std::byte* data, std::size_t bytes,
                                std::shared_ptr<const void> owner) = 0;
  // The same for the partial sums that core loop `core` sends to other racks.
  virtual DoneFlag OnSums(Incarnation incarnation, CoreIndex core, std::byte* data,
                          std::size_t bytes, std::shared_ptr<const void> owner) = 0;
  // The job has ended. The flag reports when the listener has released all of its memory.
  virtual DoneFlag OnReleased(Incarnation incarnation) = 0;
};

}  // namespace phub::server
