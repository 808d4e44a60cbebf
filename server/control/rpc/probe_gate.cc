#include "server/control/rpc/probe_gate.h"

#include <string>
#include <utility>

#include "common/base/log.h"
#include "common/net/host_port.h"
#include "server/control/lanes/lanes.h"

namespace phub::server {

ProbeGate::ProbeGate(transport::LaneGate& others, Prober& prober, ControlThread& thread, bool tls)
    : others_(others), prober_(prober), thread_(thread), tls_(tls) {}

bool ProbeGate::FindNonce(const wire::LaneHello& hello, wire::Nonce& nonce) {
  if (!Prober::IsProbe(hello)) return others_.FindNonce(hello, nonce);
  const auto found = prober_.FindNonce(hello);
  if (!found) return false;
  nonce = *found;
  return true;
}

wire::LaneRefusal ProbeGate::Admit(const wire::LaneHello& hello, std::string_view peer_address) {
  if (!Prober::IsProbe(hello)) return others_.Admit(hello, peer_address);
  const wire::LaneRefusal refusal = prober_.Admit(hello, tls_);
  if (refusal == wire::LaneRefusal::kNone) return refusal;
  const bool logs = thread_.Run([&](Control& control) {
    return control.lanes().MayLogRefusalOf(net::AddressBlock(peer_address));
  });
  if (logs) {
    LogWarning("event=probe_lane_refused reason={} peer={}", wire::ToString(refusal), peer_address);
  }
  return refusal;
}

void ProbeGate::Attach(const wire::LaneHello& hello,
                       std::unique_ptr<transport::Connection> connection,
                       std::string peer_address) {
  if (Prober::IsProbe(hello)) return prober_.Attach(hello, std::move(connection));
  others_.Attach(hello, std::move(connection), std::move(peer_address));
}

}  // namespace phub::server
