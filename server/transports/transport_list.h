// The transports that this daemon serves, opened from its settings and kept as one: the registry's
// order, first those that are served, then those that are not. Cold; the daemon's owner, unless
// stated otherwise.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/transports/daemon_lanes.h"

namespace phub::server {

class TransportList {
 public:
  // Says which setting is in the way, and what to do.
  static absl::StatusOr<TransportList> Open(const DaemonLanesContext& context);

  // What control knows of them; also of those that are not served, with the reason.
  const LaneTransports& descriptions() const { return descriptions_; }
  bool Serves(std::string_view name) const;

  // For one core loop, in the order of descriptions().
  absl::StatusOr<std::vector<std::unique_ptr<transport::Transport>>> MakeTransports(CoreIndex core);
  void Connect(ControlThread& thread, Control& control);
  // After Connect, as long as this lives.
  std::vector<transport::LaneKind*> LaneKinds();
  std::vector<PeerLaneDialer*> PeerDialers();  // [transport index]; null: no lanes to other racks
  absl::Status Start();
  void Stop();

 private:
  LaneTransports descriptions_;
  std::vector<std::unique_ptr<DaemonLanes>> served_;  // the first of descriptions_
};

}  // namespace phub::server
