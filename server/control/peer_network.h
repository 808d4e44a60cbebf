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

  // Waits until the rack takes it: messages come there in order and once, as long as neither daemon
  // is started again. When too many wait, all of them are dropped for this one: returns how many.
  // The rack finds the gap, and whoever sent knows it from here; jobs that span racks end by it.
  virtual std::size_t Send(RackIndex to, v1::PeerMessage message) = 0;
  // Makes a data lane; answered by Control::AttachPeerLane or Control::PeerLaneFailed. An empty
  // host stands for the one of the rack's control plane.
  virtual void DialLane(RackIndex to, std::string host, std::uint16_t port,
                        const wire::LaneHello& hello, bool tls) = 0;
};

}  // namespace phub::server
