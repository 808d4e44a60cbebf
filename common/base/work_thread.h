// A thread that runs posted functions in order. For slow work that must not run under a lock or in
// an event loop.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "common/base/clock.h"

namespace phub {

class WorkThread {
 public:
  // `name`: the thread's name in top and gdb. `waiting_max`: the queue's limit; Post() then fails.
  explicit WorkThread(std::string name, std::size_t waiting_max = SIZE_MAX);
  ~WorkThread();  // drops the functions that have not started
  // An error if the process lacks threads; Post() then fails. Check it before the first call.
  const absl::Status& started() const { return started_; }
  WorkThread(const WorkThread&) = delete;
  WorkThread& operator=(const WorkThread&) = delete;

  // Any thread, including a posted function. False, without effect, if the queue is full or the
  // thread is ending.
  bool Post(std::function<void()> work);
  // From now on, calls the function every `period`, also if there is always work. Call it at most
  // once, before Finish(). Owner's thread.
  void RunEvery(DurationNs period, std::function<void()> work);
  // Runs the functions in the queue, then ends the thread. Owner's thread; idempotent.
  void Finish();

 private:
  void Loop();
  bool WaitForWork(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::function<void()>> waiting_;   // under mutex_
  bool ending_ = false;                         // under mutex_
  std::function<void()> periodic_;              // under mutex_ until it is set
  DurationNs period_ = 0;                       // under mutex_; 0: there is no periodic function
  std::chrono::steady_clock::time_point next_;  // under mutex_; when the periodic function is due
  const std::size_t waiting_max_;
  std::thread thread_;
  const absl::Status started_;
};

}  // namespace phub
