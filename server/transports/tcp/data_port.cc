#include "server/transports/tcp/data_port.h"

#include <fmt/format.h>

#include <utility>

#include "common/base/cpu_topology.h"
#include "common/base/shortage.h"
#include "common/base/status_text.h"
#include "server/transports/daemon_lanes.h"

namespace phub::server {
DataPort::DataPort(const DataPortOptions& options, ControlThread& thread)
    : thread_(thread), gate_(thread, options.tcp_index, options.tls) {
  if (options.prober != nullptr)
    probe_gate_ = std::make_unique<ProbeGate>(gate_, *options.prober, thread, options.tls);
}

DataPort::~DataPort() { Stop(); }

absl::StatusOr<std::unique_ptr<DataPort>> DataPort::Open(const DataPortOptions& options,
                                                         ControlThread& thread,
                                                         const Clock& clock) {
  std::unique_ptr<DataPort> opened(new DataPort(options, thread));
  transport::TcpListenerOptions listening;
  listening.host = options.host;
  listening.port = options.port;
  listening.tls = options.tls;
  transport::LaneGate* gate = &opened->gate_;
  if (opened->probe_gate_ != nullptr) gate = opened->probe_gate_.get();
  auto created = transport::TcpListener::Create(listening, *gate, clock, options.other_kinds);
  if (!created.ok()) {
    return absl::Status(created.status().code(),
                        fmt::format("data lanes (data_listen): {}", MessageOf(created.status())));
  }
  opened->listener_ = *std::move(created);
  return opened;
}

absl::Status DataPort::Start() {
  return StartThread(accepting_, "lane-listener", [this] {
    NameThisThread("lane-listener");
    DataPortReport report(thread_, listener_->counters());
    while (!stopping_.load(std::memory_order_relaxed)) {
      if (listener_->PollOnce(kListenerWait)) report.Update();
    }
  });
}

void DataPort::Stop() {
  stopping_.store(true, std::memory_order_relaxed);
  if (accepting_.joinable()) accepting_.join();
}

}  // namespace phub::server
