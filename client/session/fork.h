// Forked children of a process that uses phub. The threads of a job and of gRPC do not exist in the
// child, and locks may be held there forever. So the child can neither use nor destroy the parent's
// objects: public functions refuse, and objects are leaked when their last reference goes.
//
// Threads: any.
#pragma once

#include <atomic>
#include <memory>

#include "phub/status.h"

namespace phub::client {

// From now on, children know that they were forked. Called before gRPC starts. Idempotent.
void WatchForks();

extern std::atomic<bool> forked;
// True in a child that was forked after WatchForks().
inline bool InForkedChild() { return forked.load(std::memory_order_relaxed); }
// The error of every public function in the child.
Status ForkedStatus();

// Keeps an object that the child must not destroy, so that leak checkers find a reference to it.
void KeepForever(const void* object);

// Deletes an object that has threads, locks or connections, but leaks it in a forked child.
struct DeleteInParent {
  template <typename T>
  void operator()(T* object) const {
    if (InForkedChild())
      KeepForever(object);
    else
      delete object;
  }
};

}  // namespace phub::client
