// Who decides, in the daemon, which processes of this host get lanes and memory.
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

// As the kernel knows them (SO_PEERCRED): of the process that connected, when it did.
struct PeerCredentials {
  pid_t pid = 0;  // 0: in a process namespace that this one does not see
  uid_t uid = 0;
  gid_t gid = 0;
};
std::string ToString(const PeerCredentials& credentials);  // "shm pid 1234 uid 0"

// What a batch of keys has for one rank. Both may be null.
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

  // Whether this hello becomes a lane. Consumes the nonce. kNone admits it; then Memory follows,
  // and Attach unless there is none.
  virtual wire::LaneRefusal Admit(const wire::LaneHello& hello,
                                  const PeerCredentials& credentials) = 0;
  // What the admitted lane is made of. An error ends it: the peer is told kCapacity.
  virtual absl::StatusOr<LaneMemory> Memory(const wire::LaneHello& hello) = 0;
  // Hands over the connection. The peer has been told that it is welcome.
  virtual void Attach(const wire::LaneHello& hello, std::unique_ptr<Connection> connection,
                      std::string peer_address) = 0;

  // Fills `memory` if the request may have it: consumes its nonce, and kNone.
  virtual wire::LaneRefusal AdmitBatch(const wire::SharedBatchRequest& request,
                                       const PeerCredentials& credentials, BatchMemory& memory) = 0;
};

}  // namespace phub::transport
