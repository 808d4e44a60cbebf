// A worker's calls to one daemon's control plane: the calls of rpc::WorkerCalls
// (common/rpc/rpcs.h) with callbacks. Implemented by gRPC (grpc_control_channel.h) and by the
// simulation. A joined job has one channel for each daemon of its rack.
//
// Threads. Functions may be called from any thread, but callbacks must not call Reconnect() and
// Close(). Callbacks run on threads of the channel, several at once, and should be short. Every
// `done` is called exactly once.
#pragma once

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/rpc/rpcs.h"
#include "phub/v1/admin.pb.h"
#include "phub/v1/session.pb.h"

namespace phub::client {

template <typename Response>
using Done = std::function<void(absl::StatusOr<Response>)>;

// One virtual Start() for each RPC of a list.
template <typename List>
class Calls;
template <>
class Calls<rpc::List<>> {
 public:
  virtual ~Calls() = default;

 protected:
  void Start() {}  // ends the chain of overloads
};
template <typename First, typename... Rest>
class Calls<rpc::List<First, Rest...>> : public Calls<rpc::List<Rest...>> {
 protected:
  using Calls<rpc::List<Rest...>>::Start;
  virtual void Start(First, const typename First::Request& request, DurationNs timeout,
                     Done<typename First::Response> done) = 0;
};

class ControlChannel : public Calls<rpc::WorkerCalls> {
 public:
  template <typename Response>
  using Done = client::Done<Response>;

  // Receives the events of the Attend stream.
  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void OnEvent(const v1::SessionEvent& event) = 0;
    virtual void OnAttendClosed(const absl::Status& status) = 0;  // the last call for this stream
  };

  // channel.Call<rpc::Join>(request, timeout, done). timeout <= 0: no timeout. After the timeout,
  // `done` receives kDeadlineExceeded. LoadState is a stream of one message here; client/checkpoint
  // transfers the checkpoint itself.
  template <typename Rpc>
  void Call(const typename Rpc::Request& request, DurationNs timeout,
            Done<typename Rpc::Response> done) {
    Start(Rpc(), request, timeout, std::move(done));
  }

  // Opens the stream. Only one may be open: call again only after OnAttendClosed(). The observer
  // must live until Close() has returned.
  virtual void Attend(Observer& observer) = 0;
  // At most one heartbeat waits while another is being sent: a new one replaces it.
  virtual void SendHeartbeat(const v1::Heartbeat& heartbeat) = 0;

  // Cancels all calls in flight and the stream, and waits until their callbacks have returned.
  // Later calls use a new connection, since the old one may be dead without an error.
  virtual void Reconnect() = 0;
  // Cancels all calls in flight and the stream. After it returns, no callback runs or will run.
  // Later calls fail with kCancelled.
  virtual void Close() = 0;
};

// A channel that passes all calls to one template of Self: void Carry<Rpc>(request, timeout, done).
template <typename Self, typename List = rpc::WorkerCalls>
class ChannelOf;
template <typename Self>
class ChannelOf<Self, rpc::List<>> : public ControlChannel {
 protected:
  using ControlChannel::Start;
};
template <typename Self, typename First, typename... Rest>
class ChannelOf<Self, rpc::List<First, Rest...>> : public ChannelOf<Self, rpc::List<Rest...>> {
 protected:
  using ChannelOf<Self, rpc::List<Rest...>>::Start;
  void Start(First, const typename First::Request& request, DurationNs timeout,
             Done<typename First::Response> done) final {
    static_cast<Self*>(this)->template Carry<First>(request, timeout, std::move(done));
  }
};

}  // namespace phub::client
