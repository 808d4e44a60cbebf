// The thread that runs a job's engine: polls while there is work, yields a few times when there is
// none, then sleeps on its transports and a doorbell. It serves tcp and shared memory at once; one
// that has no lane costs a look at an empty list.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <thread>

#include "client/engine.h"
#include "common/base/clock.h"
#include "common/base/waiter.h"
#include "common/transport/shm/shm_transport.h"
#include "common/transport/tcp/tcp_transport.h"

namespace phub::client {

class EngineThread {
 public:
  EngineThread(const EngineConfig& config, const Clock& clock, EngineListener& listener);
  ~EngineThread();  // quits
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // Any thread but the engine's own. Waits its turn if the queue is full, which the engine empties
  // without ever waiting for anybody. After Quit() nothing happens.
  void Submit(const Command& command);
  // Ends the thread; the engine stays as it is. Any thread but the engine's own; once is enough.
  void Quit();

 private:
  void Run();
  void Sleep();
  void Wake();

  const Clock& clock_;
  transport::TcpTransport tcp_;
  transport::ShmTransport shm_;
  // Commands name a transport by its place here.
  const std::array<transport::Transport*, 2> transports_{&tcp_, &shm_};
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
