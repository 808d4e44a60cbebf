// Checks in checked builds that a function runs on a core loop's thread, inside some
// CoreLoop::RunOnce(). Functions of stages begin with PHUB_ON_CORE_LOOP().
//
// A simulation runs many loops in one thread, so each RunOnce() marks the thread while it runs. A
// test that calls stages without a loop must have an OnCoreLoop object.
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
