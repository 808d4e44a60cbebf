// Lanes in shared memory, for workers of the same host.
#include <fmt/format.h>

#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include "common/base/cpu_topology.h"
#include "common/base/host_boot_id.h"
#include "common/base/shortage.h"
#include "common/base/status_text.h"
#include "common/transport/shm/ring.h"
#include "common/transport/shm/shm_listener.h"
#include "common/transport/shm/shm_transport.h"
#include "server/control/parts.h"
#include "server/transports/daemon_lanes.h"
#include "server/transports/shm/shared_memory_gate.h"

namespace phub::server {
namespace {

class ShmLanes final : public DaemonLanes {
 public:
  ShmLanes(const Clock& clock, Random& random) : clock_(clock), random_(random) {}
  ~ShmLanes() override { Stop(); }

  absl::StatusOr<std::unique_ptr<transport::Transport>> MakeTransport(CoreIndex /*core*/) override {
    absl::StatusOr<Descriptor> epoll = MakeEpoll();
    if (!epoll.ok()) return epoll.status();
    return std::make_unique<transport::ShmTransport>(transport::kConnectionsMaxDefault,
                                                     *std::move(epoll));
  }

  void Connect(ControlThread& thread, Control& /*control*/, std::uint8_t transport_index) override {
    control_ = &thread;
    gate_ = std::make_unique<ControlSharedMemoryGate>(thread, transport_index);
  }

  absl::Status Start() override {
    auto created = transport::ShmListener::Create({}, *gate_, clock_, random_);
    if (!created.ok()) {
      return absl::Status(created.status().code(),
                          fmt::format("shared memory (shm; disable it with --shm off): {}",
                                      MessageOf(created.status())));
    }
    listener_ = *std::move(created);
    control_->Run([this](Control& control) {
      control.host_memory().SetSharedMemoryEndpoint(listener_->name(), HostBootId());
    });
    return StartThread(thread_, "shm-listener", [this] {
      NameThisThread("shm-listener");
      while (!stopping_.load(std::memory_order_relaxed)) listener_->PollOnce(kListenerWait);
    });
  }

  void Stop() override {
    stopping_.store(true, std::memory_order_relaxed);
    if (thread_.joinable()) thread_.join();
  }

 private:
  const Clock& clock_;
  Random& random_;
  ControlThread* control_ = nullptr;  // since Connect
  std::unique_ptr<ControlSharedMemoryGate> gate_;
  std::unique_ptr<transport::ShmListener> listener_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

absl::StatusOr<OpenedLanes> OpenShm(const DaemonLanesContext& context) {
  OpenedLanes opened{.description = {.name = "shm"}, .lanes = nullptr};
  if (context.settings.shm == ShmMode::kOff) return opened;
  const transport::ShmLimits limits;  // the defaults, which the listener uses
  opened.description.lane_bytes =
      transport::LaneMemoryBytes(limits.ring_records, limits.arena_bytes);
  opened.description.privacy = "same host: data does not leave its memory";
  opened.lanes = std::make_unique<ShmLanes>(context.clock, context.random);
  return opened;
}

}  // namespace

DaemonLaneProvider ShmDaemonLanes() { return {.name = "shm", .open = OpenShm}; }

}  // namespace phub::server
