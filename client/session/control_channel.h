// How a worker talks to one daemon's control plane: the calls of rpc::SessionCalls
// (common/rpc/rpcs.h) with callbacks, so that gRPC (grpc_control_channel.h) and the simulation can
// both stand behind it. One per job that was joined and daemon of its rack.
//
// Threads. Functions may be called from any thread, callbacks excepted: those may call everything
// but Reconnect() and Close(). Callbacks come on threads of the channel, several at once, and
// should be short. Every `done` is called exactly once.
#pragma once

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/rpc/rpcs.h"
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

class ControlChannel : public Calls<rpc::SessionCalls> {
 public:
  template <typename Response>
  using Done = client::Done<Response>;

  // Hears the Attend stream.
  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void OnEvent(const v1::SessionEvent& event) = 0;
    virtual void OnAttendClosed(const absl::Status& status) = 0;  // nothing comes after it
  };

  // channel.Call<rpc::Join>(request, timeout, done). timeout <= 0: none. Past it, `done` gets
  // kDeadlineExceeded. LoadState is a stream of one message here; saved state itself is moved by
  // client/checkpoint.
  template <typename Rpc>
  void Call(const typename Rpc::Request& request, DurationNs timeout,
            Done<typename Rpc::Response> done) {
    Start(Rpc(), request, timeout, std::move(done));
  }

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

// A channel whose calls all go to one template of Self: void Carry<Rpc>(request, timeout, done).
template <typename Self, typename List = rpc::SessionCalls>
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
