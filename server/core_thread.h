// The thread of one core loop: calls RunOnce() until it is stopped, waits while there is no work,
// and rings control's doorbell. It does the waiting and the system calls that a CoreLoop must not
// do, so that the simulation can run CoreLoops without it.
//
// Threads: only the owner calls Start, Stop and the destructor; any thread may call Wake.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <thread>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/idle_yields.h"
#include "common/base/waiter.h"
#include "common/transport/transport.h"
#include "server/core/core_loop.h"
#include "server/core_plan.h"

namespace phub::server {

class CoreThread {
 public:
  struct Options {
    std::optional<std::uint32_t> pin;  // os index of the core to stay on
    CorePlan::Waiting waiting = CorePlan::Waiting::kBlock;
    int wakes = -1;  // another descriptor that wakes the loop while it is readable; -1: none
  };

  // The references must outlive the thread. `control_doorbell` is rung after the loop has pushed
  // events or executed commands. Every transport must have a descriptor.
  CoreThread(CoreLoop& loop, std::span<transport::Transport* const> transports, const Clock& clock,
             const Doorbell& control_doorbell, Options options);
  ~CoreThread();  // Stop()
  CoreThread(const CoreThread&) = delete;
  CoreThread& operator=(const CoreThread&) = delete;

  // Returns once the thread is pinned and running, or the error that prevents it.
  absl::Status Start();
  // Stops after the current RunOnce(). Idempotent.
  void Stop();

  // Call after pushing commands: wakes a loop that blocks.
  void Wake() const { doorbell_.Ring(); }

 private:
  void Run();
  bool ShouldBlock(bool worked);
  // Waits for all transports except `lingering`, which may be null.
  void Block(const transport::Transport* lingering, DurationNs timeout);
  bool Linger();  // false: nothing to linger for
  void RingControl();

  CoreLoop& loop_;
  const std::span<transport::Transport* const> transports_;
  const Clock& clock_;
  const Doorbell& control_doorbell_;
  const Options options_;
  Doorbell doorbell_;
  Waiter waiter_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
  // Only for the thread.
  std::uint64_t commands_done_seen_ = 0;
  IdleYields yields_;
  bool is_idle_ = false;  // kPollThenBlock: the last RunOnce() had nothing to do
  TimeNs idle_since_ = 0;
};

}  // namespace phub::server
