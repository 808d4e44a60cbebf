// A ControlChannel that calls a fake daemon in the same process. Calls run on threads of their own,
// as over gRPC.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "client/session/connector.h"
#include "client/session/control_channel.h"

namespace phub::client {

class FakeDaemon;

class DirectChannel final : public ControlChannel {
 public:
  explicit DirectChannel(FakeDaemon& daemon) : daemon_(daemon) {}
  ~DirectChannel() override { Close(); }

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
  template <typename Response, typename Handler>
  void Call(Done<Response> done, Handler handler);
  void JoinCalls();

  FakeDaemon& daemon_;
  std::atomic<bool> closed_{false};
  std::atomic<std::uint64_t> generation_{0};  // of the connection
  std::mutex mutex_;
  std::vector<std::thread> calls_;
};

}  // namespace phub::client
