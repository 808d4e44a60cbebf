// How Control reaches the daemons of other racks. Implemented by server/control/rpc/peer_links.h
// over gRPC, tcp and verbs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/wire/lane_hello.h"
#include "phub/v1/peer.pb.h"
#include "server/control/racks/peer_queue.h"
#include "server/core/exchange/rack_plan.h"

namespace phub::server {

// A request to open a lane.
struct PeerLaneCall {
  RackIndex to{};
  std::string host;  // empty: the host of the rack's control plane
  std::uint16_t port = 0;
  wire::LaneHello hello;  // contains the nonce for tcp
  bool tls = false;       // for tcp
  // If set, try verbs first, with this nonce. It is sent unencrypted, so tcp uses the other nonce.
  std::optional<wire::Nonce> verbs_nonce;
  bool verbs_only = false;
};

// Called with Control's lock held; must return at once and must not call back into Control.
class PeerNetwork {
 public:
  virtual ~PeerNetwork() = default;

  // Queues a message until the rack accepts it. Messages arrive in order and exactly once, unless
  // one of the two daemons restarts. If the queue is full, some messages are dropped
  // (peer_queue.h), and the jobs that sent them fail.
  virtual DroppedMessages Send(RackIndex to, const PeerSender& sender, v1::PeerMessage message) = 0;
  // Opens a data lane. Answered by Control::AttachPeerLane or Control::PeerLaneFailed.
  virtual void DialLane(PeerLaneCall call) = 0;
};

}  // namespace phub::server
