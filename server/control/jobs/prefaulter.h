// Who takes the pages of what control lends, and gives them back, where control does not wait for
// it: that takes a second for some GiB, and whoever held Control's lock for so long would keep
// every job's heartbeats unanswered.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "server/control/jobs/memory_listener.h"

namespace phub::server {

// Memory that is mapped and has no pages yet. Once nobody owns it, nobody needs them any more.
struct UnbackedMemory {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::weak_ptr<const void> owner;
};

enum class PrefaultState : std::uint8_t { kWaiting, kTaken, kRefused };  // kRefused: by the system
// Changes once; then control's doorbell is rung.
using PagesFlag = std::shared_ptr<const std::atomic<PrefaultState>>;

// Called with Control's lock held; returns at once.
class Prefaulter {
 public:
  virtual ~Prefaulter() = default;
  virtual PagesFlag Take(std::vector<UnbackedMemory> memory) = 0;
  // Destroys it, unless others own it as well.
  virtual DoneFlag Free(std::shared_ptr<const void> memory) = 0;
};

}  // namespace phub::server
