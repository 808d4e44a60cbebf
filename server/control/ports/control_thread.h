// The daemon's only lock, and the thread that gives Control its time: calls Poll when a core loop
// rings the bell or a deadline comes. gRPC's threads and the lane listener come in through Run.
#pragma once

#include <functional>
#include <limits>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/waiter.h"
#include "server/control/control.h"

namespace phub::server {

class ControlThread {
 public:
  // Both outlive it. Any thread may call anything but Start and Stop, which are the owner's.
  ControlThread(Control& control, const Clock& clock);
  ~ControlThread();  // Stop()
  ControlThread(const ControlThread&) = delete;
  ControlThread& operator=(const ControlThread&) = delete;

  void Start();
  void Stop();

  // Core loops ring it after they pushed events or executed commands.
  const Doorbell& doorbell() const { return doorbell_; }

  // Calls function(control) under the lock; what was deferred meanwhile runs after it is released.
  template <typename Function>
  auto Run(Function&& function) {
    Deferred deferred;
    const auto locked = [&] {
      const std::lock_guard lock(mutex_);
      const Settle settle(*this, deferred);
      return std::forward<Function>(function)(control_);
    };
    if constexpr (std::is_void_v<std::invoke_result_t<Function, Control&>>) {
      locked();
      RunDeferred(deferred);
    } else {
      auto result = locked();
      RunDeferred(deferred);
      return result;
    }
  }

  // Only from inside Run (from Control's callbacks and sinks): runs without the lock, in order, on
  // the thread that is in Run. This is how answers leave: gRPC may call back from within Finish.
  void Defer(std::function<void()> function) { deferred_.push_back(std::move(function)); }

 private:
  using Deferred = std::vector<std::function<void()>>;
  // Ends a stay under the lock: takes what was deferred, wakes the thread if it sleeps too long.
  class Settle {
   public:
    Settle(ControlThread& thread, Deferred& deferred) : thread_(thread), deferred_(deferred) {}
    ~Settle();

   private:
    ControlThread& thread_;
    Deferred& deferred_;
  };
  static void RunDeferred(Deferred& deferred);
  void Loop();

  Control& control_;
  const Clock& clock_;
  Doorbell doorbell_;
  std::mutex mutex_;
  Deferred deferred_;                                           // under mutex_
  TimeNs sleeping_until_ = std::numeric_limits<TimeNs>::min();  // under mutex_; min: it is awake
  bool stopping_ = false;                                       // under mutex_
  std::thread thread_;
};

}  // namespace phub::server
