// The thread that runs a job's engine: polls while there is work, then yields a few times, then
// sleeps on its transports and a doorbell. It serves all its transports at once; polling
// a transport without lanes costs almost nothing.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "client/engine.h"
#include "common/base/clock.h"
#include "common/base/waiter.h"
#include "common/transport/transport.h"

namespace phub::client {

class EngineThread {
 public:
  // Commands name a transport by its index in `transports`; see LaneWays.
  EngineThread(const EngineConfig& config, const Clock& clock, EngineListener& listener,
               std::vector<std::unique_ptr<transport::Transport>> transports);
  ~EngineThread();  // quits
  // Call it first, and do not use the engine if it fails: the process lacks a thread, memory or a
  // descriptor.
  absl::Status Start();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  IterationDecider::Outcome outcome() const { return engine_.outcome(); }
  DurationNs Silence(std::uint32_t lane) const { return engine_.Silence(lane); }
  // Any thread except the engine's. Waits while the queue is full; the engine never blocks while it
  // empties the queue. After Quit() it does nothing.
  void Submit(const Command& command);
  // Ends the thread; the engine's state stays. Any thread except the engine's. Idempotent.
  void Quit();

 private:
  void Run();
  bool Linger();  // false: no transport requests it
  // lingering: not null: a transport that is not armed for at most `linger`.
  void Sleep(const transport::Transport* lingering, DurationNs linger);
  void Wake();

  const Clock& clock_;
  const std::vector<std::unique_ptr<transport::Transport>> owned_;
  const std::vector<transport::Transport*> transports_;  // the same, for the engine
  Engine engine_;
  const bool computes_;  // sums of integers
  Doorbell doorbell_;
  Waiter waiter_;
  std::mutex submit_mutex_;
  // Set before the engine's last check of the queue, cleared when it is awake. Both sides use an
  // exchange, so either the engine sees the command or the submitter sees that it sleeps.
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> quit_{false};
  std::thread thread_;
};

}  // namespace phub::client
