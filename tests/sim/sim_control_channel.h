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

class SimControlChannel final : public client::ControlChannel {
 public:
  SimControlChannel(SimNetwork& network, SimDaemon& daemon, std::string address, DurationNs delay);
  ~SimControlChannel() override;

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
  // The daemon takes the stream to be the session's whose Join was answered last.
  void Attend(Observer& observer) override;
  void SendHeartbeat(const v1::Heartbeat& heartbeat) override;
  void Reconnect() override { BreakStream(); }
  void Close() override { Cut(false); }

  // The stream breaks: both ends are told.
  void BreakStream();
  // The worker died. silent: the daemon hears nothing, not even that the connection closed.
  void Cut(bool silent);

 private:
  struct Wire;
  class Sink;
  // At the daemon's end, one delay from now.
  void AtDaemon(std::function<void(server::Control&)> what);
  template <typename Part, typename Request, typename Response>
  void Call(Part& (server::Control::*part)(),
            void (Part::*method)(const Request&, server::Answer<Response>), const Request& request,
            DurationNs timeout, Done<Response> done);
  // What Control is to answer with; `done` is called one delay later, or at the timeout.
  template <typename Response>
  server::Answer<Response> Returning(DurationNs timeout, Done<Response> done);

  std::shared_ptr<Wire> wire_;
};

}  // namespace phub::sim
