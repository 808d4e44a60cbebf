// ControlChannel over gRPC's callback API.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <set>

#include "client/session/control_channel.h"
#include "phub/v1/session.grpc.pb.h"

namespace phub::client {

class GrpcControlChannel final : public ControlChannel {
 public:
  explicit GrpcControlChannel(const std::shared_ptr<grpc::Channel>& channel);
  ~GrpcControlChannel() override;  // closes

  void Join(const v1::JoinRequest& request, DurationNs timeout,
            Done<v1::JoinResponse> done) override;
  void AddKeys(const v1::AddKeysRequest& request, DurationNs timeout,
               Done<v1::AddKeysResponse> done) override;
  void OpenLanes(const v1::OpenLanesRequest& request, DurationNs timeout,
                 Done<v1::OpenLanesResponse> done) override;
  void Barrier(const v1::BarrierRequest& request, DurationNs timeout,
               Done<v1::BarrierResponse> done) override;
  void Leave(const v1::LeaveRequest& request, DurationNs timeout,
             Done<v1::LeaveResponse> done) override;
  void Attend(Observer& observer) override;
  void SendHeartbeat(const v1::Heartbeat& heartbeat) override;
  void Close() override;

 private:
  class Attendance;
  template <typename Request, typename Response, typename Method>
  void Call(Method method, const Request& request, DurationNs timeout, Done<Response> done);
  bool Begin(grpc::ClientContext& context);
  void Forget(grpc::ClientContext& context);
  void End();

  const std::unique_ptr<v1::Session::Stub> stub_;
  std::mutex mutex_;
  std::condition_variable idle_;
  bool closed_ = false;
  std::set<grpc::ClientContext*> calls_;  // what Close() cancels; the stream included
  std::size_t busy_ = 0;                  // calls whose callback has not ended
  std::unique_ptr<Attendance> attendance_;
};

}  // namespace phub::client
