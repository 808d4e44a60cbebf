// Sends phubd's status to its supervisor with systemd's notification protocol (sd_notify(3)): one
// datagram for each message, to the socket in NOTIFY_SOCKET. Does nothing if that variable is not
// set. A message that cannot be delivered is dropped, because phubd must not depend on its
// supervisor. One thread.
#pragma once

#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/descriptor.h"

namespace phub::server {

class ServiceManager {
 public:
  // Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, and removes them, so that child processes
  // do not inherit them.
  static ServiceManager FromEnvironment();

  // How often to call KeepAlive(): half of the supervisor's timeout; 0: never.
  DurationNs keep_alive_interval() const { return keep_alive_interval_; }

  // Asks the supervisor to wait for Ready() for another `grace`.
  void Starting(std::string_view status, DurationNs grace);
  void Ready(std::string_view status);
  void Reloading(TimeNs now);  // CLOCK_MONOTONIC, like SystemClock; call Ready() afterwards
  // Asks the supervisor to wait up to `grace` for phubd to stop.
  void Stopping(std::string_view status, DurationNs grace);
  void KeepAlive();

 private:
  void Send(const std::string& message) const;

  std::string address_;  // "/run/...", or "@..." for an abstract socket; empty: no supervisor
  Descriptor socket_;
  DurationNs keep_alive_interval_ = 0;
};

}  // namespace phub::server
