// Prefaults and frees the memory that control lends, on another thread. Some GiB take a second, and
// holding Control's lock for that long would leave the heartbeats of all jobs unanswered.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "server/control/jobs/memory_listener.h"

namespace phub::server {

// Mapped memory without pages. The pages are not needed any more when `owner` has expired.
struct UnbackedMemory {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::weak_ptr<const void> owner;
};

enum class PrefaultState : std::uint8_t { kWaiting, kTaken, kRefused };  // kRefused: out of memory
// Changes once; then control's doorbell is rung.
using PagesFlag = std::shared_ptr<const std::atomic<PrefaultState>>;

// Called with Control's lock held. Returns at once.
class Prefaulter {
 public:
  virtual ~Prefaulter() = default;
  virtual PagesFlag Take(std::vector<UnbackedMemory> memory) = 0;
  // Drops this reference on the other thread, which frees the memory if it was the last one.
  virtual DoneFlag Free(std::shared_ptr<const void> memory) = 0;
};

}  // namespace phub::server
