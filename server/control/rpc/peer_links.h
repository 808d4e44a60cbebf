// The daemon's ways to the daemons of other racks, with two threads for each: one delivers
// Control's envelopes (and, when there is nothing to say, heartbeats), and one dials lanes, so that
// a rack that does not answer keeps nobody else's lanes waiting.
//
// An envelope is repeated until there is a receipt, so messages arrive in order and once. What a
// rack has not taken is kept in a queue with bounds, peer_queue.h; Control, who is told what was
// dropped, ends the jobs that cannot go on without it. Of a rank that waits for its job to be
// opened the call expires.
//
// Threads: PeerNetwork's calls come with Control's lock held; Start and Stop are the owner's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "server/control/ports/control_thread.h"
#include "server/control/ports/peer_lane_dialer.h"
#include "server/control/racks/peer_network.h"
#include "server/control/rpc/peer_channel.h"

namespace phub::server {

struct PeerLinkOptions {
  std::vector<std::string> racks;  // "host:port" of their control planes
  std::uint32_t self = 0;
  PeerCredentials credentials;
  DurationNs liveness_timeout = 0;
  // [transport index], tcp first. They outlive the links. Null: no lanes to other racks.
  std::vector<PeerLaneDialer*> dialers;
  std::vector<std::string> transport_names;  // [transport index], for logs
};

class PeerLinks final : public PeerNetwork {
 public:
  // Both outlive it.
  PeerLinks(ControlThread& control, const Clock& clock, PeerLinkOptions options);
  ~PeerLinks() override;

  // FAILED_PRECONDITION: a file of the credentials cannot be read.
  absl::Status Start();
  void Stop();

  DroppedMessages Send(RackIndex to, const PeerSender& sender, v1::PeerMessage message) override;
  void DialLane(PeerLaneCall call) override;

 private:
  struct Link;

  void Deliver(Link& link);
  bool SendEnvelope(Link& link);
  void Connect(Link& link);
  void DialLanes(Link& link);
  void Dial(Link& link, const PeerLaneCall& call);
  // Over one of the transports that both racks offer; kUnimplemented: none was tried.
  absl::StatusOr<DialledPeerLane> DialOffers(Link& link, const PeerLaneCall& call,
                                             const PeerLaneTarget& target,
                                             std::uint8_t& transport_index);

  ControlThread& control_;
  std::shared_ptr<grpc::ChannelCredentials> credentials_;  // since Start
  const Clock& clock_;
  const PeerLinkOptions options_;
  std::vector<std::unique_ptr<Link>> links_;  // [rack]; null at the own one
};

}  // namespace phub::server
