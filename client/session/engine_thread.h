// The thread that runs a job's engine: polls while there is work, yields a few times when there is
// none, then sleeps on its transports and a doorbell. It serves tcp, shared memory and verbs at
// once; one that has no lane costs a look at an empty list.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "client/engine.h"
#include "common/base/clock.h"
#include "common/base/waiter.h"
#include "common/transport/shm/shm_transport.h"
#include "common/transport/tcp/tcp_transport.h"
#include "common/transport/verbs/verbs_transport.h"

namespace phub::client {

class EngineThread {
 public:
  // verbs_queues: of this host's RDMA devices; empty: there are none to use.
  EngineThread(const EngineConfig& config, const Clock& clock, EngineListener& listener,
               std::vector<std::shared_ptr<transport::VerbsQueue>> verbs_queues = {});
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
  // linger > 0: for that long at most, whatever comes over tcp.
  void Sleep(DurationNs linger);
  void Wake();

  const Clock& clock_;
  transport::TcpTransport tcp_;
  transport::ShmTransport shm_;
  const std::unique_ptr<transport::VerbsTransport> verbs_;  // null: there is no device
  // Commands name a transport by its place here.
  const std::vector<transport::Transport*> transports_;
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
