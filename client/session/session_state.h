// What a phub::Session holds: the gRPC channel that its jobs share, and where it leads.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>

#include "client/session/endpoint.h"
#include "phub/client.h"

namespace phub::client {

class SessionState {
 public:
  SessionState(Endpoint daemon, ConnectOptions options, std::shared_ptr<grpc::Channel> channel)
      : daemon_(std::move(daemon)), options_(std::move(options)), channel_(std::move(channel)) {}

  const Endpoint& daemon() const { return daemon_; }
  const ConnectOptions& options() const { return options_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

 private:
  const Endpoint daemon_;
  const ConnectOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace phub::client
