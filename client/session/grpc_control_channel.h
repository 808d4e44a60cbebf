// ControlChannel over gRPC's callback API.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

#include "client/session/control_channel.h"

namespace phub::client {

class GrpcControlChannel final : public ControlChannel {
 public:
  // `connect` makes a channel to the daemon that shares no connection with any other. It is called
  // now, and by Reconnect().
  using Connect = std::function<std::shared_ptr<grpc::Channel>()>;
  explicit GrpcControlChannel(Connect connect);
  ~GrpcControlChannel() override;  // closes

  void GetRack(const v1::GetRackRequest& request, DurationNs timeout, Done<v1::Rack> done) override;
  void Join(const v1::JoinRequest& request, DurationNs timeout,
            Done<v1::JoinResponse> done) override;
  void Commit(const v1::CommitRequest& request, DurationNs timeout,
              Done<v1::CommitResponse> done) override;
  void AddKeys(const v1::AddKeysRequest& request, DurationNs timeout,
               Done<v1::AddKeysResponse> done) override;
  void OpenLanes(const v1::OpenLanesRequest& request, DurationNs timeout,
                 Done<v1::OpenLanesResponse> done) override;
  void Barrier(const v1::BarrierRequest& request, DurationNs timeout,
               Done<v1::BarrierResponse> done) override;
  void Leave(const v1::LeaveRequest& request, DurationNs timeout,
             Done<v1::LeaveResponse> done) override;
  void GetVersions(const v1::GetVersionsRequest& request, DurationNs timeout,
                   Done<v1::GetVersionsResponse> done) override;
  void LoadState(const v1::LoadStateRequest& request, DurationNs timeout,
                 Done<v1::LoadStateResponse> done) override;
  void GetLoadedState(const v1::GetLoadedStateRequest& request, DurationNs timeout,
                      Done<v1::LoadedState> done) override;
  void Attend(Observer& observer) override;
  void SendHeartbeat(const v1::Heartbeat& heartbeat) override;
  void Reconnect() override;
  void Close() override;

 private:
  struct Connection;  // a gRPC channel and what is under way on it
  class Attendance;
  class Loading;
  template <typename Request, typename Response, typename Method>
  void Call(Method method, const Request& request, DurationNs timeout, Done<Response> done);
  Connection* Begin(grpc::ClientContext& context);  // null: closed
  void Forget(Connection& connection, grpc::ClientContext& context);
  void End(Connection& connection);
  void Drop(std::unique_ptr<Connection> connection);

  const Connect connect_;
  std::mutex mutex_;
  std::condition_variable idle_;
  bool closed_ = false;
  // Never destroyed on a thread of gRPC's; see Call().
  std::unique_ptr<Connection> connection_;
  Attendance* attendance_ = nullptr;  // the stream that is open; ends by itself
};

}  // namespace phub::client
