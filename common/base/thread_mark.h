// Marks what a thread is doing at present, for checks that a function runs only there: "on a core
// loop", "under control's lock". Exists in checked builds only (see owner_thread.h).
#pragma once

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
