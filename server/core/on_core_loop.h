// Says that a function belongs to a core loop's thread, and checks it in checked builds: the caller
// must be inside some CoreLoop::RunOnce() on this thread. Stages open with PHUB_ON_CORE_LOOP().
//
// A simulation runs many loops in one thread: each RunOnce() marks the thread for its own time. A
// test that calls stages without a loop holds an OnCoreLoop of its own.
#pragma once

#include "common/base/check.h"

namespace phub::server {

#ifdef NDEBUG
class OnCoreLoop {
 public:
  OnCoreLoop() {}
  ~OnCoreLoop() {}
};
#define PHUB_ON_CORE_LOOP() static_cast<void>(0)
#else
class OnCoreLoop {
 public:
  OnCoreLoop() { ++depth_; }
  ~OnCoreLoop() { --depth_; }
  OnCoreLoop(const OnCoreLoop&) = delete;
  OnCoreLoop& operator=(const OnCoreLoop&) = delete;
  static bool Holds() { return depth_ > 0; }

 private:
  inline static thread_local int depth_ = 0;
};
#define PHUB_ON_CORE_LOOP() PHUB_CHECK(::phub::server::OnCoreLoop::Holds(), "not on a core loop")
#endif

}  // namespace phub::server
