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

// All calls come from the listener's thread.
class VerbsGate {
 public:
  virtual ~VerbsGate() = default;

  // Whether this hello becomes a lane. Consumes the nonce. kNone admits it; then Parts follows, and
  // Attach unless there are none.
  virtual wire::LaneRefusal Admit(const wire::LaneHello& hello, std::string_view peer_address) = 0;
  // What the admitted lane is made of. An error ends it: the peer is told kCapacity.
  virtual absl::StatusOr<VerbsLaneParts> Parts(const wire::LaneHello& hello) = 0;
  // Hands over the connection. The peer has been told that it is welcome.
  virtual void Attach(const wire::LaneHello& hello, std::unique_ptr<Connection> connection,
                      std::string description) = 0;
};

}  // namespace phub::transport
