// The daemon's ways to the daemons of other racks, with two threads for each: one delivers
// Control's envelopes (and, when there is nothing to say, heartbeats), and one dials lanes, so that
// a rack that does not answer keeps nobody else's lanes waiting.
//
// An envelope is repeated until there is a receipt, so messages arrive in order and once. What a
// rack has not taken is kept up to kMessagesMax and kMessageBytesMax, and then dropped as a whole:
// no job that spans racks can go on without it, so Control, who is told, ends them all. Of a rank
// that waits for its job to be opened the call expires.
//
// Threads: PeerNetwork's calls come with Control's lock held; Start and Stop are the owner's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "server/control/control_thread.h"
#include "server/control/peer_channel.h"
#include "server/control/peer_network.h"

namespace phub::server {

struct PeerLinkOptions {
  std::vector<std::string> racks;  // "host:port" of their control planes
  std::uint32_t self = 0;
  PeerCredentials credentials;
  DurationNs liveness_timeout = 0;
  std::uint8_t tcp_index = 0;  // of the core loops' transports
};

class PeerLinks final : public PeerNetwork {
 public:
  // Both outlive it.
  PeerLinks(ControlThread& control, const Clock& clock, PeerLinkOptions options);
  ~PeerLinks() override;

  // FAILED_PRECONDITION: a file of the credentials cannot be read.
  absl::Status Start();
  void Stop();

  std::size_t Send(RackIndex to, v1::PeerMessage message) override;
  void DialLane(RackIndex to, std::string host, std::uint16_t port, const wire::LaneHello& hello,
                bool tls) override;

 private:
  struct Link;
  struct Call {
    RackIndex to{};
    std::string host;
    std::uint16_t port = 0;
    wire::LaneHello hello;
    bool tls = false;
  };

  void Deliver(Link& link);
  bool SendEnvelope(Link& link);
  void Connect(Link& link);
  void DialLanes(Link& link);
  void Dial(const Call& call);

  ControlThread& control_;
  std::shared_ptr<grpc::ChannelCredentials> credentials_;  // since Start
  const Clock& clock_;
  const PeerLinkOptions options_;
  std::vector<std::unique_ptr<Link>> links_;  // [rack]; null at the own one
};

}  // namespace phub::server
