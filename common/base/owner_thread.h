// Checks that cost too much for a release: whole objects after each step, and the thread that a
// comment names. Both run in checked builds, which are those without NDEBUG (debug, asan, tsan,
// fuzz); a release compiles none of it.
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

// The thread that an object belongs to: the first one that asserts it. A member of the object.
// Building and destroying the object are free, since both happen while nobody else can have it.
class OwnerThread {
 public:
#ifdef NDEBUG
  void AssertOwned() {}
#else
  void AssertOwned() {
    const std::thread::id self = std::this_thread::get_id();
    if (owner_ == std::thread::id()) owner_ = self;
    PHUB_CHECK(owner_ == self, "the object belongs to another thread");
  }

 private:
  std::thread::id owner_;
#endif
};

}  // namespace phub
