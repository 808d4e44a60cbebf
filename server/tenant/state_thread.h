// The one thread that works on control state: disks may be slow, and neither gRPC's threads nor
// control's lock are to wait for them. Work is done in order.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace phub::server {

class StateThread {
 public:
  static constexpr std::size_t kWaitingMax = 256;

  StateThread();
  ~StateThread();  // Stop()
  StateThread(const StateThread&) = delete;
  StateThread& operator=(const StateThread&) = delete;

  // Any thread. False, and nothing happens, if too much waits already, or after Stop().
  [[nodiscard]] bool Post(std::function<void()> work);
  // Does what waits, then ends. Owner's thread; idempotent.
  void Stop();

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::function<void()>> waiting_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace phub::server
