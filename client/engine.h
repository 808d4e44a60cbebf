// The data path of a worker: pushes chunks and receives replies, on one thread and without locks.
// It is the counterpart of the server's core loop. Read RunOnce() in engine.cc first.
//
// It uses clock and transports through interfaces, does not depend on threads, gRPC or names, and
// does no I/O itself. The same object runs on libphub's engine thread and in the simulation.
//
// Protocol of a lane (one connection to one core loop). A chunk's gradient is sent when one of the
// lane's staging slots is free. The reply (the chunk's new parameters, received into the caller's
// memory) frees the slot; a credit (the daemon has folded the gradient) frees it earlier. The next
// iteration of a chunk is pushed only after its reply has arrived completely, since a key has one
// round in flight. The caller may reuse the gradient after the reply, not after the credit: a lost
// lane may need those bytes again.
//
// If the lane's transport shares memory with the daemon, less data is copied. A gradient in shared
// memory is sent in place and needs no slot; other gradients are copied once, into the slot. The
// daemon writes new parameters directly to the caller's memory, or shares them read-only.
//
// Threads: RunOnce() and everything it calls run on one thread. Submit() may run on another thread,
// one at a time (libphub uses a mutex). Rounds allocate nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "client/commands.h"
#include "client/lane.h"
#include "client/push/iteration_decider.h"
#include "common/base/clock.h"
#include "common/transport/transport.h"

namespace phub::client {

class Engine {
 public:
  // All arguments must outlive the engine.
  Engine(const EngineConfig& config, const Clock& clock,
         std::span<transport::Transport* const> transports, EngineListener& listener);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // False if memory ran short; do not run the engine then.
  bool has_memory() const;
  // False if the queue is full: run the engine, then submit again.
  [[nodiscard]] bool Submit(const Command& command);
  // True if no submitted command is waiting. Any thread; the result may already be stale.
  bool CommandsEmpty() const;

  // Does the pending work, in bounded time. True if there was any.
  bool RunOnce();
  // Before blocking: sets how many messages the transports gather before they wake this thread.
  void AwaitReplies();

  // When to run again even if nothing arrives. The maximum if never.
  TimeNs NextTimer() const;
  // How long the daemon has been silent on a lane; kNotWatched if the lane is not open, or if the
  // daemon sends no keep-alives. Any thread. Judged by SilenceJudge.
  static constexpr DurationNs kNotWatched = -1;
  DurationNs Silence(std::uint32_t lane) const;

  const EngineCounters& counters() const;
  // The minimum over all keys of first_iteration + completed reductions. Any thread. Never older
  // than the last event of a RoundListener.
  std::uint64_t job_iteration() const;
  // With EngineConfig::apply_iteration. Any thread. Never older than the last event of a
  // RoundListener.
  IterationDecider::Outcome outcome() const;
  // Free staging slots of a lane: slots_per_lane if nothing is in flight.
  std::size_t free_slots(std::uint32_t lane) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace phub::client
