#include "client/session/fork.h"

#include <pthread.h>

#include <mutex>
#include <vector>

namespace phub::client {

std::atomic<bool> forked{false};

void WatchForks() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
  });
}

Status ForkedStatus() {
  return Status(StatusCode::kFailedPrecondition,
                "this process was forked from one that uses phub, so it cannot use phub itself; "
                "start it with exec, or connect after the fork and not before");
}

void KeepForever(const void* object) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<const void*>;
  const std::lock_guard lock(mutex);
  kept->push_back(object);
}

}  // namespace phub::client
