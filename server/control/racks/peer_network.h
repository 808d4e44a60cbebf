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

// A transport that both daemons offer for a lane. Its nonce is sent unencrypted, so it is valid for
// this transport only.
struct PeerLaneOffer {
  std::uint8_t transport_index = 0;
  wire::Nonce nonce{};
};

// A request to open a lane.
struct PeerLaneCall {
  RackIndex to{};
  std::string host;  // empty: the host of the rack's control plane
  std::uint16_t port = 0;
  wire::LaneHello hello;              // contains the nonce for tcp
  bool tls = false;                   // for tcp
  std::vector<PeerLaneOffer> offers;  // tried in order, before tcp
  bool offers_only = false;           // tcp is not tried
};

// Maximum size of a message; with its envelope it stays below the limit of the other daemon's gRPC.
inline constexpr std::size_t kPeerMessageBytesMax = (4 << 20) - (64 << 10);

// Called with Control's lock held; must return at once and must not call back into Control.
class PeerNetwork {
 public:
  virtual ~PeerNetwork() = default;

  // Queues a message, of at most kPeerMessageBytesMax, until the rack accepts it. Messages arrive
  // in order and exactly once, unless one of the two daemons restarts. If the queue is full, some
  // messages are dropped (peer_queue.h), and the jobs that sent them fail.
  virtual DroppedMessages Send(RackIndex to, const PeerSender& sender,
                               SharedPeerMessage message) = 0;
  // Opens a data lane. Answered by Control::AttachPeerLane or Control::PeerLaneFailed.
  virtual void DialLane(PeerLaneCall call) = 0;
};

}  // namespace phub::server
