// The simulation's ControlChannel: calls and events reach the daemon's Control (and come back)
// after a virtual delay, in order, as over one connection. A channel that was cut carries nothing;
// the daemon learns of it as a closed stream, unless its host fell silent.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "client/session/control_channel.h"
#include "server/control/control.h"
#include "tests/sim/sim_network.h"

namespace phub::sim {

class SimControlChannel final : public client::ControlChannel {
 public:
  SimControlChannel(SimNetwork& network, server::Control& control, std::string address,
                    DurationNs delay);
  ~SimControlChannel() override;

  // Timeouts are not simulated: Control answers or the session's verdict comes.
  void Join(const v1::JoinRequest& request, DurationNs, Done<v1::JoinResponse> done) override;
  void AddKeys(const v1::AddKeysRequest& request, DurationNs,
               Done<v1::AddKeysResponse> done) override;
  void OpenLanes(const v1::OpenLanesRequest& request, DurationNs,
                 Done<v1::OpenLanesResponse> done) override;
  void Barrier(const v1::BarrierRequest& request, DurationNs,
               Done<v1::BarrierResponse> done) override;
  void Leave(const v1::LeaveRequest& request, DurationNs, Done<v1::LeaveResponse> done) override;
  void Attend(Observer& observer) override;
  void SendHeartbeat(const v1::Heartbeat& heartbeat) override;
  void Close() override { Cut(false); }

  // The worker died. silent: the daemon hears nothing, not even that the connection closed.
  void Cut(bool silent);

 private:
  struct Wire;
  class Sink;
  // At the daemon's end, one delay from now.
  void AtDaemon(std::function<void(server::Control&)> what);
  template <typename Response>
  server::Answer<Response> Returning(Done<Response> done);

  std::shared_ptr<Wire> wire_;
};

}  // namespace phub::sim
