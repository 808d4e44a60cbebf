// One core's share of the daemon: polls its transports, stages gradients, sums them when a round
// is whole, updates parameters and replies, all on one thread and without locks. Start reading at
// RunOnce() in core_loop.cc: it shows the order of the stages.
//
// It gets clock and transports through interfaces and does no I/O of its own, so the same code runs
// on a thread in phubd and in the deterministic simulation.
//
// Threads: only the loop's thread, except for queues(), counters() and the constructor. Nothing
// allocates after construction (a test hooks operator new).
#pragma once

#include <memory>
#include <span>

#include "common/base/clock.h"
#include "common/base/spsc_queue.h"
#include "common/transport/transport.h"
#include "server/core/commands.h"
#include "server/metrics/counters.h"

namespace phub::server {

struct CoreQueues {
  CoreQueues() : commands(1024), events(4096) {}
  SpscQueue<Command> commands;  // control -> core loop
  SpscQueue<Event> events;      // core loop -> control
};

class CoreLoop {
 public:
  // The references must outlive the loop. liveness_timeout: lanes are kept alive and watched for
  // peers that are silent for that long; 0: they are not.
  CoreLoop(CoreIndex core, const Clock& clock, std::span<transport::Transport* const> transports,
           DurationNs liveness_timeout = 0);
  ~CoreLoop();
  CoreLoop(const CoreLoop&) = delete;
  CoreLoop& operator=(const CoreLoop&) = delete;

  // Does the work that is available, in bounded time. True if there was any.
  bool RunOnce();

  // When to call RunOnce() again even if no input arrives: a throttled tenant may continue then, or
  // keep-alives are due. The maximum if never.
  TimeNs NextTimer() const;

  // Counts a block. The thread calls it before it blocks.
  void CountBlock();

  // Aborts if the loop's state violates an invariant (docs/internals/invariants.md). For
  // simulations, after a run; checked builds also check after each message what the message
  // touched.
  void CheckInvariants() const;

  CoreIndex core() const;
  CoreQueues& queues();
  const CoreCounters& counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace phub::server
