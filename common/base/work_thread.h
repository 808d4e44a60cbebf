// A thread that does what it is given, in order: for whatever takes time where nobody may wait for
// it, under a lock or in a loop that serves others.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace phub {

class WorkThread {
 public:
  // `name`: what the system shows. `waiting_max`: more is refused.
  explicit WorkThread(std::string name, std::size_t waiting_max = SIZE_MAX);
  ~WorkThread();  // what waits is dropped
  WorkThread(const WorkThread&) = delete;
  WorkThread& operator=(const WorkThread&) = delete;

  // Any thread, the one that does it too. False, and nothing happens, if too much waits already, or
  // once it ends.
  bool Post(std::function<void()> work);
  // Does what waits, then ends. Owner's thread; idempotent.
  void Finish();

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::function<void()>> waiting_;  // under mutex_
  bool ending_ = false;                        // under mutex_
  const std::size_t waiting_max_;
  std::thread thread_;
};

}  // namespace phub
