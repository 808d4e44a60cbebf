// The client's half of lanes over tcp, with or without TLS. Every daemon offers tcp.
#include <utility>

#include "common/base/shortage.h"
#include "common/transport/client_lanes.h"
#include "common/transport/stream/linger.h"
#include "common/transport/tcp/tcp_dial.h"
#include "common/transport/tcp/tcp_transport.h"
#include "common/transport/tls/tls_dial.h"

namespace phub::transport {
namespace {

class TcpLanes final : public ClientLanes {
 public:
  absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(std::uint32_t connections_max,
                                                           std::size_t window_bytes) override {
    absl::StatusOr<Descriptor> epoll = MakeEpoll();
    if (!epoll.ok()) return epoll.status();
    return std::make_unique<TcpTransport>(connections_max, LingerBytes(window_bytes),
                                          *std::move(epoll));
  }

  absl::Status Offer(const LaneTarget& target) const override {
    if (target.tls_lanes || !target.encryption_required) return absl::OkStatus();
    return absl::FailedPreconditionError(
        "the tenant requires encryption, but the daemon's lanes over tcp are not encrypted; start "
        "phubd with data_tls=on");
  }

  absl::StatusOr<DialledLane> Dial(const LaneTarget& target, const wire::LaneHello& hello,
                                   DurationNs timeout, std::uint32_t /*attempt*/,
                                   bool& nonce_used) override {
    nonce_used = true;
    const auto dial = target.tls_lanes ? DialTls : DialTcp;
    auto connection = dial(target.host, target.port, hello, timeout, {});
    if (!connection.ok()) return connection.status();
    return DialledLane{*std::move(connection), target.tls_lanes ? "TLS 1.3" : ""};
  }
};

}  // namespace

ClientLaneProvider TcpClientLanes() {
  return {.name = "tcp",
          .spoken_name = "tcp",
          .choice = 1,
          .preference = 0,
          .open = [](const std::string&) -> std::unique_ptr<ClientLanes> {
            return std::make_unique<TcpLanes>();
          }};
}

}  // namespace phub::transport
