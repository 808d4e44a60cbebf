// Checks that are too expensive for a release: invariants of an entire object after each step, and
// the thread that may use an object. They run in checked builds, that is, builds without NDEBUG
// (debug, asan, tsan, fuzz). A release build does not compile them.
#pragma once

#include "common/base/check.h"

#ifndef NDEBUG
#include <thread>
#endif

namespace phub {

#ifdef NDEBUG
inline constexpr bool kCheckedBuild = false;
#else
inline constexpr bool kCheckedBuild = true;
#endif

// Asserts that one thread uses an object: the first thread that calls AssertOwned(). Make it a
// member of the object. Construction and destruction are not checked and may happen on any thread.
class OwnerThread {
 public:
#ifdef NDEBUG
  void AssertOwned() {}
#else
  void AssertOwned() {
    const std::thread::id self = std::this_thread::get_id();
    if (owner_ == std::thread::id()) owner_ = self;
    PHUB_CHECK(owner_ == self, "another thread owns the object");
  }

 private:
  std::thread::id owner_;
#endif
};

}  // namespace phub
