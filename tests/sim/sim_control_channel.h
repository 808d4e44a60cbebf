// The simulation's ControlChannel: calls and events reach the daemon's Control (and come back)
// after a virtual delay, in order, as over one connection. A channel that was cut carries nothing;
// the daemon learns of it as a closed stream, unless the worker's host fell silent. A call that a
// dead daemon swallowed ends with its timeout.
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

  // The daemon takes the stream to be the session's whose Join was answered last.
  void Attend(Observer& observer) override;
  void SendHeartbeat(const v1::Heartbeat& heartbeat) override;
  void Reconnect() override { BreakStream(); }
  void Close() override { Cut(false); }

  // The stream breaks: both ends are told.
  void BreakStream();
  // The worker died. silent: the daemon hears nothing, not even that the connection closed.
  void Cut(bool silent);

  // What ChannelOf calls.
  template <typename Rpc>
  void Carry(const typename Rpc::Request& request, DurationNs timeout,
             Done<typename Rpc::Response> done);

 private:
  struct Wire;
  class Sink;
  // At the daemon's end, one delay from now.
  void AtDaemon(std::function<void(server::Control&)> what);
  void Join(const v1::JoinRequest& request, DurationNs timeout, Done<v1::JoinResponse> done);
  void Load(const v1::LoadStateRequest& request, DurationNs timeout,
            Done<v1::LoadStateResponse> done);
  // What Control is to answer with; `done` is called one delay later, or at the timeout.
  template <typename Response>
  server::Answer<Response> Returning(DurationNs timeout, Done<Response> done);

  std::shared_ptr<Wire> wire_;
};

}  // namespace phub::sim
