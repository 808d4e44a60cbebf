// Connector over gRPC.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "client/session/channel.h"
#include "client/session/connector.h"
#include "common/net/dial.h"

namespace phub::client {

class GrpcConnector final : public Connector {
 public:
  GrpcConnector(std::chrono::milliseconds connect_timeout, Credentials credentials)
      : connect_timeout_(connect_timeout), credentials_(std::move(credentials)) {}

  Result<std::unique_ptr<ControlChannel>> Connect(const Endpoint& daemon) override;
  CheckpointStubs MakeCheckpointStubs(const Endpoint& daemon) override;

 private:
  // Makes a channel and waits until it is connected. The error has the cause; `permanent`: trying
  // again is useless.
  absl::StatusOr<std::shared_ptr<grpc::Channel>> ConnectOnce(const std::string& address,
                                                             const net::Deadline& deadline,
                                                             bool& permanent) const;

  const std::chrono::milliseconds connect_timeout_;
  const Credentials credentials_;
};

}  // namespace phub::client
