// What phubd tells the program that supervises it, by systemd's notification protocol
// (sd_notify(3)): one datagram to the socket that NOTIFY_SOCKET names. Without that variable
// nothing happens. Messages that cannot be delivered are dropped: a supervisor that is gone is no
// reason to stop. One thread.
#pragma once

#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/descriptor.h"

namespace phub::server {

class ServiceManager {
 public:
  // Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, and removes them, so that no child
  // process speaks for this one.
  static ServiceManager FromEnvironment();

  // How often KeepAlive() is wanted; 0: never. Half of what the supervisor waits.
  DurationNs keep_alive_interval() const { return keep_alive_interval_; }

  void Ready(std::string_view status);
  void Reloading(TimeNs now);  // by CLOCK_MONOTONIC, as SystemClock has it; Ready() ends it
  // Stopping may take `grace`; the supervisor is asked to wait for so long.
  void Stopping(std::string_view status, DurationNs grace);
  void KeepAlive();

 private:
  void Send(const std::string& message) const;

  std::string address_;  // "/run/...", or "@..." for an abstract one; empty: nobody listens
  Descriptor socket_;
  DurationNs keep_alive_interval_ = 0;
};

}  // namespace phub::server
