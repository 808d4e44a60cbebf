// How a worker talks to its daemon's control plane: the calls of proto/phub/v1/session.proto with
// callbacks, so that gRPC (grpc_control_channel.h) and the simulation can both stand behind it.
// One per job that was joined.
//
// Threads. Functions may be called from any thread, callbacks excepted: those may call everything
// but Close(). Callbacks come on threads of the channel, several at once, and should be short.
// Every `done` is called exactly once.
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
  virtual void Join(const v1::JoinRequest& request, DurationNs timeout,
                    Done<v1::JoinResponse> done) = 0;
  virtual void AddKeys(const v1::AddKeysRequest& request, DurationNs timeout,
                       Done<v1::AddKeysResponse> done) = 0;
  virtual void OpenLanes(const v1::OpenLanesRequest& request, DurationNs timeout,
                         Done<v1::OpenLanesResponse> done) = 0;
  virtual void Barrier(const v1::BarrierRequest& request, DurationNs timeout,
                       Done<v1::BarrierResponse> done) = 0;
  virtual void Leave(const v1::LeaveRequest& request, DurationNs timeout,
                     Done<v1::LeaveResponse> done) = 0;

  // Opens the stream; once. The observer outlives the channel, or at least Close().
  virtual void Attend(Observer& observer) = 0;
  // One that finds the last still on its way replaces it if it waits, so nothing piles up.
  virtual void SendHeartbeat(const v1::Heartbeat& heartbeat) = 0;

  // Cancels everything under way; when it returns, no callback runs or will run. Calls after it
  // get kCancelled.
  virtual void Close() = 0;
};

}  // namespace phub::client
