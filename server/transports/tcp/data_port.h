// The port at which workers and the daemons of other racks open lanes: over tcp, with or without
// TLS, and over every transport whose lanes are asked for there. A thread of its own accepts.
//
// Threads: the daemon's owner.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/transport/tcp/lane_kind.h"
#include "common/transport/tcp/tcp_listener.h"
#include "server/control/ports/control_thread.h"
#include "server/control/rpc/probe_gate.h"
#include "server/transports/tcp/data_port_report.h"
#include "server/transports/tcp/tcp_lane_gate.h"

namespace phub::server {

struct DataPortOptions {
  std::string host;
  std::uint16_t port = 0;  // 0: the kernel chooses
  bool tls = false;
  std::uint8_t tcp_index = 0;                     // index among the core loops' transports
  std::vector<transport::LaneKind*> other_kinds;  // lanes over other transports
  Prober* prober = nullptr;                       // null: no lanes of probes come
};

class DataPort {
 public:
  // Everything given outlives the port. The error names the setting.
  static absl::StatusOr<std::unique_ptr<DataPort>> Open(const DataPortOptions& options,
                                                        ControlThread& thread, const Clock& clock);
  ~DataPort();
  DataPort(const DataPort&) = delete;
  DataPort& operator=(const DataPort&) = delete;

  std::uint16_t port() const { return listener_->port(); }
  const std::vector<net::SocketAddress>& addresses() const { return listener_->addresses(); }
  // Begins to accept.
  absl::Status Start();
  void Stop();  // idempotent

 private:
  DataPort(const DataPortOptions& options, ControlThread& thread);

  ControlThread& thread_;
  ControlLaneGate gate_;
  std::unique_ptr<ProbeGate> probe_gate_;  // null: no lanes of probes come
  std::unique_ptr<transport::TcpListener> listener_;
  std::atomic<bool> stopping_{false};
  std::thread accepting_;
};

}  // namespace phub::server
