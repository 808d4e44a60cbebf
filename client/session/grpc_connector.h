// Connector over gRPC.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>

#include "client/session/connector.h"

namespace phub::client {

class GrpcConnector final : public Connector {
 public:
  explicit GrpcConnector(std::chrono::milliseconds connect_timeout)
      : connect_timeout_(connect_timeout) {}

  Result<std::unique_ptr<ControlChannel>> Connect(const Endpoint& daemon) override;
  StateStubs MakeStateStubs(const Endpoint& daemon) override;

 private:
  const std::chrono::milliseconds connect_timeout_;
};

}  // namespace phub::client
