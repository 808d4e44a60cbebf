// The simulation's ControlChannel: calls and events reach the daemon's Control (and come back)
// after a virtual delay, in order, as over one connection. A channel that was cut carries nothing;
// the daemon learns of it as a closed stream, unless its host fell silent.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/control/control.h"
#include "tests/sim/sim_network.h"

namespace phub::sim {

class SimControlChannel {
 public:
  template <typename Response>
  using Answer = std::function<void(const absl::Status&, const Response&)>;
  using OnEvent = std::function<void(const v1::SessionEvent&)>;

  SimControlChannel(SimNetwork& network, server::Control& control, std::string address,
                    DurationNs delay);
  ~SimControlChannel();

  void Join(const v1::JoinRequest& request, Answer<v1::JoinResponse> answer);
  void AddKeys(const v1::AddKeysRequest& request, Answer<v1::AddKeysResponse> answer);
  void OpenLanes(const v1::OpenLanesRequest& request, Answer<v1::OpenLanesResponse> answer);
  void Barrier(const v1::BarrierRequest& request, Answer<v1::BarrierResponse> answer);
  void Leave(const v1::LeaveRequest& request, Answer<v1::LeaveResponse> answer);
  void Attend(const std::string& session_id, OnEvent on_event);
  void SendHeartbeat(std::uint64_t sequence);

  // The worker died. silent: the daemon hears nothing, not even that the connection closed.
  void Cut(bool silent);

 private:
  struct Wire;
  class Sink;
  // At the daemon's end, one delay from now.
  void AtDaemon(std::function<void(server::Control&)> what);
  template <typename Response>
  Answer<Response> Returning(Answer<Response> answer);

  std::shared_ptr<Wire> wire_;
};

}  // namespace phub::sim
