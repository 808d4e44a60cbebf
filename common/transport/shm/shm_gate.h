// The interface to the part of the daemon that decides which processes of this host get lanes and
// memory.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/transport/shm/shm_lane.h"
#include "common/transport/transport.h"
#include "common/wire/lane_hello.h"
#include "common/wire/shared_memory.h"

namespace phub::transport {

// The credentials of the process that connected, as recorded by the kernel then (SO_PEERCRED).
struct PeerCredentials {
  pid_t pid = 0;  // 0: the process is in a PID namespace that is not visible here
  uid_t uid = 0;
  gid_t gid = 0;
};
std::string ToString(const PeerCredentials& credentials);  // "shm pid 1234 uid 0"
// Whose budget of log lines pays for the peer: that of its user, who can start any number of
// processes.
std::string UserOf(const PeerCredentials& credentials);  // "uid 0"

// The shared memory of a batch of keys for one rank. Both may be null.
struct BatchMemory {
  std::shared_ptr<const SharedMemory> worker;      // the rank's own, Others::kWrite
  std::shared_ptr<const SharedMemory> parameters;  // the job's, Others::kRead
  // Their indices in the rank's SharedRegions.
  std::uint32_t worker_region = 0;
  std::uint32_t parameters_region = 0;
};

// All calls come from the listener's thread.
class ShmGate {
 public:
  virtual ~ShmGate() = default;

  // Decides whether this hello becomes a lane, and consumes the nonce. kNone admits it; Memory
  // follows then, and Attach if Memory succeeds.
  virtual wire::LaneRefusal Admit(const wire::LaneHello& hello,
                                  const PeerCredentials& credentials) = 0;
  // Returns the memory of the admitted lane. If it fails, the lane is refused with kCapacity.
  virtual absl::StatusOr<LaneMemory> Memory(const wire::LaneHello& hello) = 0;
  // Hands over the connection, after the welcome was sent to the peer.
  virtual void Attach(const wire::LaneHello& hello, std::unique_ptr<Connection> connection,
                      std::string peer_address) = 0;

  // If the request is valid: consumes its nonce, fills in `memory` and returns kNone.
  virtual wire::LaneRefusal AdmitBatch(const wire::SharedBatchRequest& request,
                                       const PeerCredentials& credentials, BatchMemory& memory) = 0;
};

}  // namespace phub::transport
