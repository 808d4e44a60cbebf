// Marks what a thread is doing at present, for checks that a function runs only there: "on a core
// loop", "under control's lock". Exists in checked builds only (see owner_thread.h).
#pragma once

#include "common/base/check.h"

// Checks that the calling thread has the mark; `text`: what is wrong otherwise.
#ifdef NDEBUG
#define PHUB_CHECK_MARK(mark, text) static_cast<void>(0)
#else
#define PHUB_CHECK_MARK(mark, text) PHUB_CHECK(mark::Holds(), text)
#endif

namespace phub {

// Marks the calling thread while the object exists. `What` names the mark; objects may nest.
template <typename What>
class ThreadMark {
 public:
#ifdef NDEBUG
  ThreadMark() {}
  ~ThreadMark() {}
#else
  ThreadMark() { ++depth_; }
  ~ThreadMark() { --depth_; }
#endif
  ThreadMark(const ThreadMark&) = delete;
  ThreadMark& operator=(const ThreadMark&) = delete;

#ifndef NDEBUG
  static bool Holds() { return depth_ > 0; }

 private:
  inline static thread_local int depth_ = 0;
#endif
};

}  // namespace phub
