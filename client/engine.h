// The data side of a worker: pushes chunks, takes replies, on one thread and without locks. The
// mirror image of the server's core loop; open engine.cc: RunOnce() is the table of contents.
//
// It takes clock and transports through interfaces, knows nothing of threads, gRPC or names, and
// does no I/O of its own: the same object runs on libphub's engine thread and in the simulation.
//
// Protocol, per lane (one connection to one core loop): a chunk's gradient is sent when one of the
// lane's staging slots is free. The slot comes back with the reply (the chunk's new parameters,
// received straight into the caller's memory) or before it with a credit (the daemon folded the
// gradient). The next iteration of a chunk is pushed only after its reply has arrived whole, since
// a key has one round in flight. A gradient is the caller's again at the reply, never at the
// credit: until then a lost lane may need those bytes again.
//
// Where the lane's transport shares memory with the daemon, less is moved: a gradient that lies
// there is sent from where it lies, and takes no slot; another is copied once, into its slot; new
// parameters are written by the daemon where the caller wants them, or are shared and only read.
//
// Threads: RunOnce() and everything it calls belong to one thread; Submit() to one thread at a
// time, which may be another (libphub puts a mutex around it). Rounds allocate nothing.
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
  // Everything given outlives the engine.
  Engine(const EngineConfig& config, const Clock& clock,
         std::span<transport::Transport* const> transports, EngineListener& listener);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // False when the queue is full: run the engine, and submit again.
  [[nodiscard]] bool Submit(const Command& command);
  // Nothing submitted is waiting. Any thread; may be stale by the time it is read.
  bool CommandsEmpty() const;

  // Does what is there to do, in bounded time. True if it did anything.
  bool RunOnce();
  // Before blocking: tells the transports how much is to come before this thread is needed.
  void AwaitReplies();

  const EngineCounters& counters() const;
  // The least over all keys of first_iteration + the reductions that are complete. Any thread;
  // never behind what a RoundListener has heard.
  std::uint64_t job_iteration() const;
  // With EngineConfig::apply_iteration. Any thread; never behind what a RoundListener has heard.
  IterationDecider::Outcome outcome() const;
  // Staging slots of a lane that hold nothing: slots_per_lane when nothing is under way.
  std::size_t free_slots(std::uint32_t lane) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace phub::client
