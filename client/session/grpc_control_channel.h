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
  // `connect` makes a channel to the daemon that shares no connection with any other. It is called
  // now, and by Reconnect().
  using Connect = std::function<std::shared_ptr<grpc::Channel>()>;
  explicit GrpcControlChannel(Connect connect);
  ~GrpcControlChannel() override;  // closes

  void Attend(Observer& observer) override;
  void SendHeartbeat(const v1::Heartbeat& heartbeat) override;
  void Reconnect() override;
  void Close() override;

  // What ChannelOf calls.
  template <typename Rpc>
  void Carry(const typename Rpc::Request& request, DurationNs timeout,
             Done<typename Rpc::Response> done);

 private:
  struct Connection;  // a gRPC channel and what is under way on it
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
  // Never destroyed on a thread of gRPC's; see CallUnary().
  std::unique_ptr<Connection> connection_;
  Attendance* attendance_ = nullptr;  // the stream that is open; ends by itself
};

}  // namespace phub::client
