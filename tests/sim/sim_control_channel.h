// The simulation's ControlChannel: calls and events reach the daemon's Control (and return) after a
// virtual delay, in order, as over one connection. A channel that was cut carries nothing. The
// daemon sees it as a closed stream, unless the worker's host stopped responding. A call to a dead
// daemon ends with its timeout.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "client/session/control_channel.h"
#include "tests/sim/sim_daemon.h"
#include "tests/sim/sim_network.h"

namespace phub::sim {

class SimControlChannel final : public client::ChannelOf<SimControlChannel> {
 public:
  SimControlChannel(SimNetwork& network, SimDaemon& daemon, std::string address, DurationNs delay);
  ~SimControlChannel() override;

  // The daemon assigns the stream to the session whose Join was answered last.
  void Attend(Observer& observer) override;
  void SendHeartbeat(const v1::Heartbeat& heartbeat) override;
  void Reconnect() override { BreakStream(); }
  void Close() override { Cut(false); }

  // Breaks the stream. Both ends notice.
  void BreakStream();
  // The worker died. If `silent`, the daemon does not even see the connection close.
  void Cut(bool silent);

  // The interface that ChannelOf calls.
  template <typename Rpc>
  void Carry(const typename Rpc::Request& request, DurationNs timeout,
             Done<typename Rpc::Response> done);

 private:
  struct Wire;
  class Sink;
  // Runs at the daemon's end, one delay from now.
  void AtDaemon(std::function<void(server::Control&)> what);
  void Join(const v1::JoinRequest& request, DurationNs timeout, Done<v1::JoinResponse> done);
  void Load(const v1::LoadStateRequest& request, DurationNs timeout,
            Done<v1::LoadStateResponse> done);
  // A responder for Control. It calls `done` one delay after the answer, or at the timeout.
  template <typename Response>
  server::Answer<Response> Returning(DurationNs timeout, Done<Response> done);

  std::shared_ptr<Wire> wire_;
};

}  // namespace phub::sim
