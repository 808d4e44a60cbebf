// Lanes over tcp, plain or with TLS. Workers and other racks open them at the data port
// (data_port.h).
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "common/base/shortage.h"
#include "common/transport/tcp/tcp_dial.h"
#include "common/transport/tcp/tcp_transport.h"
#include "common/transport/tls/tls_dial.h"
#include "common/transport/tls/tls_session.h"
#include "server/config/data_tls.h"
#include "server/transports/daemon_lanes.h"

namespace phub::server {
namespace {

class TcpLanes final : public DaemonLanes, public PeerLaneDialer {
 public:
  explicit TcpLanes(std::uint32_t staging_bytes_per_lane)
      : linger_bytes_(transport::LingerBytes(staging_bytes_per_lane)) {}

  absl::StatusOr<std::unique_ptr<transport::Transport>> MakeTransport(CoreIndex /*core*/) override {
    absl::StatusOr<Descriptor> epoll = MakeEpoll();
    if (!epoll.ok()) return epoll.status();
    return std::make_unique<transport::TcpTransport>(transport::kConnectionsMaxDefault,
                                                     linger_bytes_, *std::move(epoll));
  }
  void Connect(ControlThread& /*thread*/, Control& /*control*/,
               std::uint8_t /*transport_index*/) override {}
  PeerLaneDialer* peer_dialer() override { return this; }

  absl::StatusOr<DialledPeerLane> DialPeer(const PeerLaneTarget& target) override {
    const auto dial = target.tls ? transport::DialTls : transport::DialTcp;
    auto connection = dial(target.host, target.port, target.hello, target.timeout, {});
    if (!connection.ok()) return connection.status();
    return DialledPeerLane{
        *std::move(connection),
        fmt::format("{} {}:{}", target.tls ? "tcp+tls" : "tcp", target.host, target.port)};
  }

 private:
  const std::size_t linger_bytes_;
};

absl::StatusOr<OpenedLanes> OpenTcp(const DaemonLanesContext& context) {
  const DataTls data_tls = DataTlsOf(context.settings);
  const std::uint64_t bytes = data_tls.on ? transport::TlsSession::kLaneBytes : 0;
  return OpenedLanes{.description = {.name = "tcp",
                                     .lane_bytes = bytes,
                                     .privacy = data_tls.reason,
                                     .peers = LaneTransport::Peers::kNever,
                                     .peer_lane_bytes = bytes},
                     .lanes = std::make_unique<TcpLanes>(context.settings.staging_bytes_per_lane)};
}

}  // namespace

DaemonLaneProvider TcpDaemonLanes() { return {.name = "tcp", .open = OpenTcp}; }

}  // namespace phub::server
