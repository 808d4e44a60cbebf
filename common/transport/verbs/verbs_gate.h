// Who decides, in the daemon, which requests become lanes over verbs, and what they are made of.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/transport/transport.h"
#include "common/transport/verbs/verbs_connection.h"
#include "common/wire/lane_hello.h"

namespace phub::transport {

struct VerbsLaneParts {
  std::shared_ptr<VerbsQueue> queue;    // of the core loop's transport, on the lane's device
  std::shared_ptr<VerbsDomain> domain;  // of the job, on the same device
  VerbsStaging staging;                 // of the rank's lane
  VerbsLimits limits;
};

// Admit comes from the listener's thread; Parts from any of the acceptor's, of several lanes at a
// time; Attach from one more.
class VerbsGate {
 public:
  virtual ~VerbsGate() = default;

  // Whether this hello becomes a lane. kNone admits it, which consumes the nonce. Then Parts
  // follows, and Attach once both ends are connected: not if there are no parts, the device
  // refuses, an end cannot reach the other, or the client has asked for another. Then nothing more
  // is said, and the nonce is gone.
  virtual wire::LaneRefusal Admit(const wire::LaneHello& hello, std::string_view peer_address) = 0;
  // What the admitted lane is made of; the job may have ended by now. An error, as any until its
  // end is made, ends the lane: the peer is told kCapacity.
  virtual absl::StatusOr<VerbsLaneParts> Parts(const wire::LaneHello& hello) = 0;
  // Hands over the connection. The peer has connected its end; the job may have ended.
  virtual void Attach(const wire::LaneHello& hello, std::unique_ptr<Connection> connection,
                      std::string description) = 0;
};

}  // namespace phub::transport
