// The daemon's only lock, and the thread that gives Control its time: calls Poll when a core loop
// rings the bell or a deadline comes. gRPC's threads and the lane listener come in through Run.
#pragma once

#include <functional>
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
    if constexpr (std::is_void_v<std::invoke_result_t<Function, Control&>>) {
      {
        const std::lock_guard lock(mutex_);
        std::forward<Function>(function)(control_);
        deferred.swap(deferred_);
      }
      Finish(deferred);
    } else {
      auto result = [&] {
        const std::lock_guard lock(mutex_);
        auto value = std::forward<Function>(function)(control_);
        deferred.swap(deferred_);
        return value;
      }();
      Finish(deferred);
      return result;
    }
  }

  // Only from inside Run (from Control's callbacks and sinks): runs without the lock, in order, on
  // the thread that is in Run. This is how answers leave: gRPC may call back from within Finish.
  void Defer(std::function<void()> function) { deferred_.push_back(std::move(function)); }

 private:
  using Deferred = std::vector<std::function<void()>>;
  void Loop();
  void Finish(Deferred& deferred);

  Control& control_;
  const Clock& clock_;
  Doorbell doorbell_;
  std::mutex mutex_;
  Deferred deferred_;      // under mutex_
  TimeNs sleeping_until_ = 0;  // under mutex_: a new, earlier deadline rings the bell
  bool stopping_ = false;  // under mutex_
  std::thread thread_;
};

}  // namespace phub::server
