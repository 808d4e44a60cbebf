// One thread of another process that stands still, by ptrace, while the process's other threads
// run. Use it on one thread only, the one that created it.
#pragma once

#include <sys/types.h>

#include <string>

#include "common/base/clock.h"

namespace phub::process {

class StoppedThread {
 public:
  // Stops the process's thread of that name, wherever it is. stopped() is false if that fails.
  StoppedThread(pid_t process, const std::string& name);
  ~StoppedThread();  // lets it run again
  StoppedThread(const StoppedThread&) = delete;
  StoppedThread& operator=(const StoppedThread&) = delete;

  bool stopped() const { return stopped_; }
  // Lets the thread run until it enters this system call, and stops it there. Returns false after
  // the timeout; the thread then runs. May be called again.
  bool RunToSystemCall(long number, DurationNs timeout);

 private:
  bool WaitForStop(DurationNs timeout);

  pid_t thread_ = -1;
  bool stopped_ = false;
  int stop_status_ = 0;
};

}  // namespace phub::process
