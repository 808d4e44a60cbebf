// Runs control's long work on one thread. Tenants take turns, one piece of work each.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "server/control/background.h"
#include "server/control/ports/control_thread.h"

namespace phub::server {

class BackgroundThread final : public Background {
 public:
  // `control` must outlive it.
  explicit BackgroundThread(ControlThread& control);
  ~BackgroundThread() override;  // Stop()
  // An error if the process lacks threads. Check it before the first call.
  const absl::Status& started() const { return started_; }

  void Run(const std::string& tenant, std::function<void()> work,
           std::function<void()> then) override;
  // Drops what has not started, now and later. Owner's thread, without control's lock.
  void Stop();

 private:
  struct Piece {
    std::function<void()> work;
    std::function<void()> then;
  };
  void Loop();
  Piece TakeNext();  // under mutex_; something waits

  ControlThread& control_;
  std::mutex mutex_;
  std::condition_variable posted_;
  std::map<std::string, std::deque<Piece>> waiting_;  // by tenant, not empty; under mutex_
  std::string last_tenant_;                           // whose turn was last; the loop's thread
  bool stopping_ = false;                             // under mutex_
  std::thread thread_;
  const absl::Status started_;
};

}  // namespace phub::server
