// Lanes over RDMA verbs. Workers ask for them at the data port, daemons of other racks, too.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/transport/verbs/verbs_acceptor.h"
#include "common/transport/verbs/verbs_dial.h"
#include "common/transport/verbs/verbs_transport.h"
#include "server/config/data_tls.h"
#include "server/control/parts.h"
#include "server/transports/daemon_lanes.h"
#include "server/transports/verbs/verbs_devices.h"
#include "server/transports/verbs/verbs_gate.h"

namespace phub::server {
namespace {

class VerbsLanes final : public DaemonLanes, public PeerLaneDialer {
 public:
  VerbsLanes(VerbsQueues queues, const transport::VerbsLimits& limits, Random& random)
      : queues_(std::move(queues)), limits_(limits), random_(random) {}

  absl::StatusOr<std::unique_ptr<transport::Transport>> MakeTransport(CoreIndex core) override {
    return transport::VerbsTransport::Create(std::vector{queues_[core.value]});
  }

  void Connect(ControlThread& thread, Control& control, std::uint8_t transport_index) override {
    gate_ = std::make_unique<ControlVerbsGate>(thread, transport_index, queues_, limits_);
    acceptor_ = std::make_unique<transport::VerbsAcceptor>(*gate_, random_);
    control.host_memory().SetMemoryListener(*gate_);
  }

  transport::LaneKind* lane_kind() override { return acceptor_.get(); }
  PeerLaneDialer* peer_dialer() override { return this; }
  absl::Status Start() override {
    if (absl::Status status = gate_->started(); !status.ok()) return status;
    return acceptor_->started();
  }
  void Stop() override { acceptor_.reset(); }

  absl::StatusOr<DialledPeerLane> DialPeer(const PeerLaneTarget& target) override {
    absl::StatusOr<transport::VerbsLaneParts> parts = gate_->Parts(target.hello);
    if (!parts.ok()) return parts.status();
    const transport::VerbsDevice& device = *parts->queue->device();
    std::string description =
        fmt::format("verbs {} {} to {}:{}", device.name(), transport::GidText(device.gid().gid),
                    target.host, target.port);
    auto connection = transport::DialVerbs(target.host, target.port, target.hello, target.timeout,
                                           std::move(parts->queue), std::move(parts->domain),
                                           random_, parts->limits, transport::VerbsEnd::kDialer);
    if (!connection.ok()) return connection.status();
    return DialledPeerLane{*std::move(connection), std::move(description)};
  }

 private:
  const VerbsQueues queues_;
  const transport::VerbsLimits limits_;
  Random& random_;
  std::unique_ptr<ControlVerbsGate> gate_;  // since Connect
  std::unique_ptr<transport::VerbsAcceptor> acceptor_;
};

// What other racks are offered.
void DescribePeers(const Settings& settings, bool has_devices, LaneTransport& description) {
  using Peers = LaneTransport::Peers;
  description.peers = Peers::kUnavailable;
  if (settings.peer_transport == PeerTransport::kTcp) {
    description.why_no_peers = "peer_transport = tcp on this daemon";
  } else if (!has_devices) {
    description.why_no_peers = settings.verbs == VerbsMode::kOff
                                   ? "verbs = off on this daemon"
                                   : "this daemon has no usable RDMA device";
  } else {
    const bool required = settings.peer_transport == PeerTransport::kVerbs;
    description.peers = required ? Peers::kRequired : Peers::kOffered;
    description.peer_lane_bytes =
        transport::VerbsLaneBytes(PeerVerbsLimits(VerbsLimitsOf(settings)));
  }
}

absl::StatusOr<OpenedLanes> OpenVerbs(const DaemonLanesContext& context) {
  auto queues = OpenVerbsQueues(context.settings, context.core_nodes);
  if (!queues.ok()) return queues.status();
  OpenedLanes opened{.description = {.name = "verbs"}, .lanes = nullptr};
  DescribePeers(context.settings, !queues->empty(), opened.description);
  if (queues->empty()) return opened;
  const transport::VerbsLimits limits = VerbsLimitsOf(context.settings);
  opened.description.lane_bytes = transport::VerbsLaneBytes(limits);
  opened.description.slot_header_bytes = wire::kSlotHeaderBytes;
  opened.description.privacy = "both ends support RDMA; not encrypted";
  opened.lanes = std::make_unique<VerbsLanes>(*std::move(queues), limits, context.random);
  if (DataTlsOf(context.settings).beyond_loopback) {
    LogWarning(
        "event=verbs_lanes_in_the_clear reason=\"RDMA is not encrypted; tenants that require "
        "encryption use TCP with TLS\"");
  }
  return opened;
}

}  // namespace

DaemonLaneProvider VerbsDaemonLanes() { return {.name = "verbs", .open = OpenVerbs}; }

}  // namespace phub::server
