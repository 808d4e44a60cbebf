// How a worker talks to one daemon's control plane: the calls of proto/phub/v1/session.proto with
// callbacks, so that gRPC (grpc_control_channel.h) and the simulation can both stand behind it.
// One per job that was joined and daemon of its rack.
//
// Threads. Functions may be called from any thread, callbacks excepted: those may call everything
// but Reconnect() and Close(). Callbacks come on threads of the channel, several at once, and
// should be short. Every `done` is called exactly once.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "phub/v1/session.pb.h"

namespace phub::client {

class ControlChannel {
 public:
  template <typename Response>
  using Done = std::function<void(absl::StatusOr<Response>)>;

  // Hears the Attend stream.
  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void OnEvent(const v1::SessionEvent& event) = 0;
    virtual void OnAttendClosed(const absl::Status& status) = 0;  // nothing comes after it
  };

  virtual ~ControlChannel() = default;

  // timeout <= 0: none. Past it, `done` gets kDeadlineExceeded.
  virtual void GetRack(const v1::GetRackRequest& request, DurationNs timeout,
                       Done<v1::Rack> done) = 0;
  virtual void Join(const v1::JoinRequest& request, DurationNs timeout,
                    Done<v1::JoinResponse> done) = 0;
  virtual void Commit(const v1::CommitRequest& request, DurationNs timeout,
                      Done<v1::CommitResponse> done) = 0;
  virtual void AddKeys(const v1::AddKeysRequest& request, DurationNs timeout,
                       Done<v1::AddKeysResponse> done) = 0;
  virtual void OpenLanes(const v1::OpenLanesRequest& request, DurationNs timeout,
                         Done<v1::OpenLanesResponse> done) = 0;
  virtual void Barrier(const v1::BarrierRequest& request, DurationNs timeout,
                       Done<v1::BarrierResponse> done) = 0;
  virtual void Leave(const v1::LeaveRequest& request, DurationNs timeout,
                     Done<v1::LeaveResponse> done) = 0;
  virtual void GetVersions(const v1::GetVersionsRequest& request, DurationNs timeout,
                           Done<v1::GetVersionsResponse> done) = 0;
  // A stream of one message. (Saved state itself is moved by client/state_transfer.)
  virtual void LoadState(const v1::LoadStateRequest& request, DurationNs timeout,
                         Done<v1::LoadStateResponse> done) = 0;
  virtual void GetLoadedState(const v1::GetLoadedStateRequest& request, DurationNs timeout,
                              Done<v1::LoadedState> done) = 0;

  // Opens the stream. One at a time: again only after OnAttendClosed(). The observer outlives the
  // channel, or at least Close().
  virtual void Attend(Observer& observer) = 0;
  // One that finds the last still on its way replaces it if it waits, so nothing piles up.
  virtual void SendHeartbeat(const v1::Heartbeat& heartbeat) = 0;

  // Cancels everything under way, the stream too, and waits until those callbacks have ended. Later
  // calls go over a new connection: the old one may lead nowhere without anybody having said so.
  virtual void Reconnect() = 0;
  // Cancels everything under way; when it returns, no callback runs or will run. Calls after it
  // get kCancelled.
  virtual void Close() = 0;
};

}  // namespace phub::client
