// ControlChannel over gRPC's callback API.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

#include "client/session/control_channel.h"

namespace phub::client {

class GrpcControlChannel final : public ChannelOf<GrpcControlChannel> {
 public:
  // `connect` creates a channel to the daemon with a connection of its own. The constructor and
  // Reconnect() call it.
  using Connect = std::function<std::shared_ptr<grpc::Channel>()>;
  explicit GrpcControlChannel(Connect connect);
  ~GrpcControlChannel() override;  // closes

  void Attend(Observer& observer) override;
  void SendHeartbeat(const v1::Heartbeat& heartbeat) override;
  void Reconnect() override;
  void Close() override;

  // Called by ChannelOf.
  template <typename Rpc>
  void Carry(const typename Rpc::Request& request, DurationNs timeout,
             Done<typename Rpc::Response> done);

 private:
  struct Connection;  // a gRPC channel and its calls in flight
  class Attendance;
  class Loading;
  template <typename Rpc>
  void CallUnary(const typename Rpc::Request& request, DurationNs timeout,
                 Done<typename Rpc::Response> done);
  void Load(const v1::LoadStateRequest& request, DurationNs timeout,
            Done<v1::LoadStateResponse> done);
  Connection* Begin(grpc::ClientContext& context);  // null: closed
  void Forget(Connection& connection, grpc::ClientContext& context);
  void End(Connection& connection);
  void Drop(std::unique_ptr<Connection> connection);

  const Connect connect_;
  std::mutex mutex_;
  std::condition_variable idle_;
  bool closed_ = false;
  // Must not be destroyed on a gRPC thread; see CallUnary().
  std::unique_ptr<Connection> connection_;
  Attendance* attendance_ = nullptr;  // the open stream; deletes itself
};

}  // namespace phub::client
