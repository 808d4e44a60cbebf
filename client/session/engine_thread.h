// The thread that runs a job's engine: polls while there is work, yields a few times when there is
// none, then sleeps on its transports and a doorbell. It serves all its transports at once; one
// that has no lane costs a look at an empty list.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "client/engine.h"
#include "common/base/clock.h"
#include "common/base/waiter.h"
#include "common/transport/transport.h"

namespace phub::client {

class EngineThread {
 public:
  // Commands name a transport by its place in `transports`; see LaneWays.
  EngineThread(const EngineConfig& config, const Clock& clock, EngineListener& listener,
               std::vector<std::unique_ptr<transport::Transport>> transports);
  ~EngineThread();  // quits
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  IterationDecider::Outcome outcome() const { return engine_.outcome(); }
  // Any thread but the engine's own. Waits its turn if the queue is full, which the engine empties
  // without ever waiting for anybody. After Quit() nothing happens.
  void Submit(const Command& command);
  // Ends the thread; the engine stays as it is. Any thread but the engine's own; once is enough.
  void Quit();

 private:
  void Run();
  bool Linger();  // false: no transport asks for it
  // Not null: `lingering` is left alone, for `linger` at most.
  void Sleep(const transport::Transport* lingering, DurationNs linger);
  void Wake();

  const Clock& clock_;
  const std::vector<std::unique_ptr<transport::Transport>> owned_;
  const std::vector<transport::Transport*> transports_;  // the same, as the engine takes them
  Engine engine_;
  Doorbell doorbell_;
  Waiter waiter_;
  std::mutex submit_mutex_;
  // True from before the engine last looks at the queue until it is awake. Both sides exchange it,
  // so that either the engine sees the command or the submitter sees the sleeper.
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> quit_{false};
  std::thread thread_;
};

}  // namespace phub::client
