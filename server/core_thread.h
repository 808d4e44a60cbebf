// The thread of one core loop: calls RunOnce() until it is stopped, waits when there is nothing to
// do, and tells control when there is something for it. All the I/O and waiting that a CoreLoop
// itself must not do, so that the simulation can do without.
//
// Threads: Start, Stop and destruction are the owner's; Wake may come from any thread.
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
  };

  // Everything given outlives the thread. `control_doorbell` is rung after the loop pushed events
  // or executed commands. Every transport has a descriptor.
  CoreThread(CoreLoop& loop, std::span<transport::Transport* const> transports, const Clock& clock,
             const Doorbell& control_doorbell, Options options);
  ~CoreThread();  // Stop()
  CoreThread(const CoreThread&) = delete;
  CoreThread& operator=(const CoreThread&) = delete;

  // Returns once the thread is pinned and runs, or says why it cannot be.
  absl::Status Start();
  // Finishes the RunOnce() that it is in. Idempotent.
  void Stop();

  // To be called after commands were pushed: ends the wait of a loop that blocks.
  void Wake() const { doorbell_.Ring(); }

 private:
  void Run();
  bool ShouldBlock(bool worked);
  // `lingering` is not waited for, and not armed; null: all are.
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
  // The thread's own.
  std::uint64_t commands_done_seen_ = 0;
  IdleYields yields_;
  bool is_idle_ = false;  // kPollThenBlock: the last RunOnce() had nothing to do
  TimeNs idle_since_ = 0;
};

}  // namespace phub::server
