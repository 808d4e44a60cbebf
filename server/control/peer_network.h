// How Control reaches the daemons of other racks. Implemented over gRPC and tcp by
// server/control/peer_links.h.
#pragma once

#include <cstdint>
#include <string>

#include "common/wire/lane_hello.h"
#include "phub/v1/peer.pb.h"
#include "server/exchange/rack_plan.h"

namespace phub::server {

// Called with Control's lock held; must return at once and must not call back into Control.
class PeerNetwork {
 public:
  virtual ~PeerNetwork() = default;

  // Delivered in order and once, or not at all: then the rack is silent or was started again, and
  // Control hears of neither receipts nor envelopes.
  // How many older messages were dropped, as too many wait: those are lost.
  virtual std::size_t Send(RackIndex to, v1::PeerMessage message) = 0;
  // Makes a data lane; answered by Control::AttachPeerLane or Control::PeerLaneFailed. An empty
  // host stands for the one of the rack's control plane.
  virtual void DialLane(RackIndex to, std::string host, std::uint16_t port,
                        const wire::LaneHello& hello, bool tls) = 0;
};

}  // namespace phub::server
