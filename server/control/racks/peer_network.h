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

// A lane that is to be made.
struct PeerLaneCall {
  RackIndex to{};
  std::string host;  // empty: the one of the rack's control plane
  std::uint16_t port = 0;
  wire::LaneHello hello;  // with the nonce for tcp
  bool tls = false;       // of tcp
  // First over verbs, with this nonce. Then it has been said in the clear: tcp has the other.
  std::optional<wire::Nonce> verbs_nonce;
  bool verbs_only = false;
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
