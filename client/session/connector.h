// How a worker reaches the daemons of a rack: over gRPC (grpc_connector.h), or as a test likes it.
// Any thread.
#pragma once

#include <memory>

#include "client/session/control_channel.h"
#include "client/session/endpoint.h"
#include "phub/status.h"
#include "phub/v1/admin.grpc.pb.h"
#include "phub/v1/session.grpc.pb.h"

namespace phub::client {

// What client/checkpoint calls a daemon with.
struct CheckpointStubs {
  std::unique_ptr<v1::Admin::StubInterface> admin;
  std::unique_ptr<v1::Session::StubInterface> session;
};

class Connector {
 public:
  virtual ~Connector() = default;
  // A channel of its own. kUnavailable names the daemon if nobody answers there in time.
  virtual Result<std::unique_ptr<ControlChannel>> Connect(const Endpoint& daemon) = 0;
  // Blocking calls, over a connection of their own: megabytes are not to delay a heartbeat.
  virtual CheckpointStubs MakeCheckpointStubs(const Endpoint& daemon) = 0;
};

}  // namespace phub::client
