// Dials lanes to the daemons of other racks over one transport. Implemented by each transport that
// can (server/transports); called by the threads of rpc/peer_links.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/transport/transport.h"
#include "common/wire/lane_hello.h"

namespace phub::server {

struct PeerLaneTarget {
  std::string host;
  std::uint16_t port = 0;
  wire::LaneHello hello;  // with the nonce for this transport
  bool tls = false;       // the peer's data port uses TLS
  DurationNs timeout = 0;
};

struct DialledPeerLane {
  std::unique_ptr<transport::Connection> connection;
  std::string description;  // starts with the transport's name
};

class PeerLaneDialer {
 public:
  virtual ~PeerLaneDialer() = default;

  // Blocks for at most the timeout. From several threads at once, one for each peer rack.
  virtual absl::StatusOr<DialledPeerLane> DialPeer(const PeerLaneTarget& target) = 0;
};

}  // namespace phub::server
