// Connects a worker to the daemons of a rack: over gRPC (grpc_connector.h), or faked by a test. Any
// thread.
#pragma once

#include <memory>

#include "client/session/control_channel.h"
#include "client/session/endpoint.h"
#include "phub/status.h"
#include "phub/v1/admin.grpc.pb.h"
#include "phub/v1/session.grpc.pb.h"

namespace phub::client {

// The stubs that client/checkpoint uses to call a daemon.
struct CheckpointStubs {
  std::unique_ptr<v1::Admin::StubInterface> admin;
  std::unique_ptr<v1::Session::StubInterface> session;
};

class Connector {
 public:
  virtual ~Connector() = default;
  // Returns a new channel. If there is no answer in time: kUnavailable, with the daemon's name.
  virtual Result<std::unique_ptr<ControlChannel>> Connect(const Endpoint& daemon) = 0;
  // Stubs for blocking calls. They use a connection of their own, so that checkpoint data does not
  // delay heartbeats.
  virtual CheckpointStubs MakeCheckpointStubs(const Endpoint& daemon) = 0;
};

}  // namespace phub::client
