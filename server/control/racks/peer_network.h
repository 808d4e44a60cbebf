// How Control reaches the daemons of other racks. Implemented by server/control/rpc/peer_links.h
// over gRPC and the daemon's transports.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/wire/lane_hello.h"
#include "phub/v1/peer.pb.h"
#include "server/control/racks/peer_queue.h"
#include "server/core/exchange/rack_plan.h"

namespace phub::server {

// A transport that both daemons have for a lane. Its nonce was sent in the clear, so it is good for
// this transport only.
struct PeerLaneOffer {
  std::uint8_t transport_index = 0;
  wire::Nonce nonce{};
};

// A lane that is to be made.
struct PeerLaneCall {
  RackIndex to{};
  std::string host;  // empty: the one of the rack's control plane
  std::uint16_t port = 0;
  wire::LaneHello hello;              // with the nonce for tcp
  bool tls = false;                   // of tcp
  std::vector<PeerLaneOffer> offers;  // tried in order, before tcp
  bool offers_only = false;           // never over tcp
};

// Called with Control's lock held; must return at once and must not call back into Control.
class PeerNetwork {
 public:
  virtual ~PeerNetwork() = default;

  // Waits until the rack takes it: messages come there in order and once, as long as neither daemon
  // is started again. When too many wait, some are dropped (peer_queue.h): jobs whose they were
  // cannot go on.
  virtual DroppedMessages Send(RackIndex to, const PeerSender& sender, v1::PeerMessage message) = 0;
  // Makes a data lane; answered by Control::AttachPeerLane or Control::PeerLaneFailed.
  virtual void DialLane(PeerLaneCall call) = 0;
};

}  // namespace phub::server
