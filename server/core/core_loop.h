// One core's share of the daemon: polls its transports, stages gradients, sums them when a round
// is whole, updates parameters and replies, all on one thread and without locks. Open
// core_loop.cc: RunOnce() is the table of contents.
//
// It takes clock and transports through interfaces and does no I/O of its own, so the same object
// runs pinned to a core in phubd and inside the deterministic simulation.
//
// Threads: everything here belongs to the loop's thread, except queues(), counters() and the
// construction. Nothing allocates after construction (a test hooks operator new).
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
  // Everything given outlives the loop.
  CoreLoop(CoreIndex core, const Clock& clock, std::span<transport::Transport* const> transports);
  ~CoreLoop();
  CoreLoop(const CoreLoop&) = delete;
  CoreLoop& operator=(const CoreLoop&) = delete;

  // Does what is there to do, in bounded time. True if it did anything.
  bool RunOnce();

  // When RunOnce() has to be called again though nothing comes: a throttled tenant may go on. The
  // end of time if never.
  TimeNs NextTimer() const;

  // Whoever runs the loop says so before it blocks: a counter.
  void CountBlock();

  // Aborts if anything that the loop keeps contradicts itself (docs/internals/invariants.md). For
  // simulations, after a run; checked builds check by themselves what each message touched.
  void CheckInvariants() const;

  CoreIndex core() const;
  CoreQueues& queues();
  const CoreCounters& counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace phub::server
