// The interface to the part of the daemon that decides which requests become lanes over verbs, and
// provides their parts.
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
  std::shared_ptr<VerbsQueue> queue;    // the core loop's, on the lane's device
  std::shared_ptr<VerbsDomain> domain;  // the job's, on the same device
  VerbsStaging staging;                 // for the rank's lane
  VerbsLimits limits;
};

// Threads: the listener's thread calls Admit; the acceptor's threads call Parts, for several lanes
// concurrently; another thread of the acceptor calls Attach.
class VerbsGate {
 public:
  virtual ~VerbsGate() = default;

  // Decides whether this hello becomes a lane. kNone admits it and consumes the nonce; then Parts
  // follows, and Attach after both ends are connected. Attach does not follow if Parts fails, the
  // device refuses, one end cannot reach the other, or the client has sent another request. The
  // gate is not notified of that, and the nonce stays consumed.
  virtual wire::LaneRefusal Admit(const wire::LaneHello& hello, std::string_view peer_address) = 0;
  // Returns the parts of the admitted lane; the job may have ended meanwhile. If this fails, or the
  // daemon's end cannot be created, the lane is refused with kCapacity.
  virtual absl::StatusOr<VerbsLaneParts> Parts(const wire::LaneHello& hello) = 0;
  // Hands over the connection, after the peer has connected its end. The job may have ended.
  virtual void Attach(const wire::LaneHello& hello, std::unique_ptr<Connection> connection,
                      std::string description) = 0;
};

}  // namespace phub::transport
