// A daemon whose control thread stands still with control's lock.
#pragma once

#include <sys/types.h>

#include <future>
#include <string>
#include <vector>

#include "tests/process/stopped_thread.h"
#include "tests/process/trainer.h"

namespace phub::process {

// A call of control gets no answer within a second.
bool ControlIsStuck(const std::string& endpoint);

class HeldLock {
 public:
  // Control's thread rings a core loop's doorbell under its lock when a job ends. So short jobs
  // run, one after the other, until the thread was stopped there. held() is false if that never
  // happens.
  HeldLock(pid_t phubd, std::string endpoint);
  // Lets the thread run, then waits for the short jobs. Calls that control did not answer in time
  // may have failed.
  ~HeldLock() = default;
  HeldLock(const HeldLock&) = delete;
  HeldLock& operator=(const HeldLock&) = delete;

  bool held() const { return held_; }

 private:
  bool StopDuring(int job);

  const std::string endpoint_;
  std::vector<std::future<Trained>> jobs_;  // end after control_ runs again
  StoppedThread control_;
  bool held_ = false;
};

}  // namespace phub::process
