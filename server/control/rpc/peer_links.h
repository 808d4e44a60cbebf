// The daemon's links to the daemons of other racks. Each link has two threads. One sends Control's
// envelopes and, if there are no messages, heartbeats. The other one dials lanes, so that a rack
// which does not answer does not delay the lanes of other racks.
//
// An envelope is repeated until there is a receipt, so messages arrive in order and exactly once.
// Messages that a rack has not accepted stay in a bounded queue (peer_queue.h). Control gets notice
// of dropped messages and ends the jobs that cannot go on without them. If a request to open a job
// was dropped, the waiting rank's call times out.
//
// Threads: PeerNetwork's functions are called with Control's lock held; only the owner calls Start
// and Stop.
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
  // [transport index], tcp first. They must outlive the links. Null: no lanes to other racks.
  std::vector<PeerLaneDialer*> dialers;
  std::vector<std::string> transport_names;  // [transport index], for logs
};

class PeerLinks final : public PeerNetwork {
 public:
  // Both must outlive it.
  PeerLinks(ControlThread& control, const Clock& clock, PeerLinkOptions options);
  ~PeerLinks() override;

  // FAILED_PRECONDITION: a file of the credentials cannot be read.
  absl::Status Start();
  void Stop();

  // The rack's daemon is at another endpoint now. Any thread.
  void SetEndpoint(RackIndex rack, const std::string& endpoint);

  DroppedMessages Send(RackIndex to, const PeerSender& sender, SharedPeerMessage message) override;
  void DialLane(PeerLaneCall call) override;

 private:
  struct Link;

  void Deliver(Link& link);
  bool SendEnvelope(Link& link);
  void Connect(Link& link);
  static std::string EndpointOf(Link& link);
  void DialLanes(Link& link);
  void Dial(Link& link, const PeerLaneCall& call);
  // Over one of the transports that both racks offer; kUnimplemented: none was tried.
  absl::StatusOr<DialledPeerLane> DialOffers(Link& link, const PeerLaneCall& call,
                                             const PeerLaneTarget& target,
                                             std::uint8_t& transport_index);

  ControlThread& control_;
  std::shared_ptr<grpc::ChannelCredentials> credentials_;  // set by Start
  const Clock& clock_;
  const PeerLinkOptions options_;
  std::vector<std::unique_ptr<Link>> links_;  // [rack]; null for this rack
};

}  // namespace phub::server
