// Control's lock, and the thread that calls Control's Poll whenever a core loop rings the doorbell
// or a deadline passes. gRPC's threads and the lane listener call Control through Run.
#pragma once

#include <atomic>
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
#include "server/control/on_control.h"

namespace phub::server {

class ControlThread {
 public:
  // Both must outlive it. Any thread may call any function except Start and Stop, which only the
  // owner may call.
  ControlThread(Control& control, const Clock& clock);
  ~ControlThread();  // Stop()
  ControlThread(const ControlThread&) = delete;
  ControlThread& operator=(const ControlThread&) = delete;

  absl::Status Start();
  void Stop();

  // Core loops ring it after they push events or execute commands.
  const Doorbell& doorbell() const { return doorbell_; }

  // How long control has not answered: since the present turn began, or since its thread should
  // have polled. Takes no lock. Any thread.
  DurationNs SilentFor() const;

  // What holds the lock, for phub_control_lock_seconds; `name` for the log, static text.
  struct Turn {
    TurnKind kind = TurnKind::kOther;
    const char* name = "";
  };

  // Calls function(control) under the lock. Functions deferred meanwhile run after the lock is
  // released.
  template <typename Function>
  auto Run(Function&& function) {
    return Run(Turn{}, std::forward<Function>(function));
  }
  template <typename Function>
  auto Run(Turn turn, Function&& function) {
    Deferred deferred;
    const auto locked = [&] {
      const std::lock_guard lock(mutex_);
      const Settle settle(*this, turn, deferred);
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

  // Only from inside Run (from Control's callbacks and sinks). Deferred functions run without the
  // lock, in order, on the thread that called Run. Answers are sent this way, since gRPC may call
  // back from within Finish.
  void Defer(std::function<void()> function) { deferred_.push_back(std::move(function)); }

 private:
  static constexpr TimeNs kNobody = std::numeric_limits<TimeNs>::max();
  using Deferred = std::vector<std::function<void()>>;
  // Runs before the lock is released: collects the deferred functions, wakes the thread if it would
  // sleep past the next deadline, and counts how long the lock was held.
  class Settle {
   public:
    Settle(ControlThread& thread, Turn turn, Deferred& deferred)
        : thread_(thread), turn_(turn), deferred_(deferred), begun_at_(thread.clock_.Now()) {
      thread_.held_since_ = begun_at_;
      thread_.control_.turns().Begin();
    }
    ~Settle();

   private:
    ControlThread& thread_;
    const Turn turn_;
    Deferred& deferred_;
    const TimeNs begun_at_;
    const OnControl on_control_;
  };
  void NoteTurn(Turn turn, TimeNs begun_at);
  static void RunDeferred(Deferred& deferred);
  void Loop();

  Control& control_;
  const Clock& clock_;
  Doorbell doorbell_;
  std::mutex mutex_;
  Deferred deferred_;                                           // under mutex_
  TimeNs sleeping_until_ = std::numeric_limits<TimeNs>::min();  // under mutex_; min: awake
  TimeNs slow_silent_until_ =
      std::numeric_limits<TimeNs>::min();  // under mutex_: not logged before
  bool stopping_ = false;                  // under mutex_
  bool stall_counted_ = false;             // under mutex_: since the last Poll
  // Written under mutex_, except that the thread itself sets due_at_ when it wakes.
  std::atomic<TimeNs> held_since_ = kNobody;
  std::atomic<TimeNs> due_at_ = kNobody;  // when the thread should poll
  std::thread thread_;
};

}  // namespace phub::server
