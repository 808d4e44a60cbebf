#include "server/transports/tcp/tcp_lane_gate.h"

#include <utility>

#include "common/base/log.h"
#include "common/net/host_port.h"
#include "server/control/lanes/lanes.h"

namespace phub::server {

ControlLaneGate::ControlLaneGate(ControlThread& thread, std::uint8_t transport_index, bool tls)
    : thread_(thread), transport_index_(transport_index), tls_(tls) {}

bool ControlLaneGate::FindNonce(const wire::LaneHello& hello, wire::Nonce& nonce) {
  const auto found = thread_.Run({TurnKind::kLane, "gate"}, [&](Control& control) {
    return control.lanes().FindNonce(hello);
  });
  if (!found) return false;
  nonce = *found;
  return true;
}

wire::LaneRefusal ControlLaneGate::Admit(const wire::LaneHello& hello,
                                         std::string_view peer_address) {
  bool logs = false;
  const wire::LaneRefusal refusal = thread_.Run([&](Control& control) {
    const wire::LaneRefusal result = control.lanes().AdmitLane(hello, std::nullopt, tls_);
    logs = result != wire::LaneRefusal::kNone &&
           control.lanes().MayLogRefusalOf(net::AddressBlock(peer_address));
    return result;
  });
  if (logs) {
    LogWarning("event=lane_refused reason={} rank={} core={} peer={}", wire::ToString(refusal),
               hello.rank.value, hello.core.value, peer_address);
  }
  return refusal;
}

void ControlLaneGate::Attach(const wire::LaneHello& hello,
                             std::unique_ptr<transport::Connection> connection,
                             std::string peer_address) {
  thread_.Run({TurnKind::kLane, "gate"}, [&](Control& control) {
    control.lanes().AttachLane(hello, std::move(connection), transport_index_,
                               tls_ ? "tcp+tls" : "tcp", peer_address);
  });
}

}  // namespace phub::server
