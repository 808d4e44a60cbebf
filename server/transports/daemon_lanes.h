// The daemon's half of a transport, apart from its data path (common/transport/transport.h): what
// serves the lanes of each core loop, what a lane costs, and how workers and the daemons of other
// racks open one. One DaemonLanes object for each transport that this daemon serves;
// daemon_registry.cc lists all transports.
//
// To add a transport, implement DaemonLanes in a folder of its own in here and add its line to
// daemon_registry.cc (and its sources to CMakeLists.txt). Admission, quotas, metrics, logs, offers
// to other racks and the choice of a transport follow from that line. The client's half is
// common/transport/client_lanes.h.
//
// Threads: the daemon's owner, unless stated otherwise.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/random.h"
#include "common/transport/tcp/lane_kind.h"
#include "common/transport/transport.h"
#include "server/config/settings.h"
#include "server/control/lane_transport.h"
#include "server/control/ports/control_thread.h"
#include "server/control/ports/peer_lane_dialer.h"
#include "server/core_plan.h"

namespace phub::server {

// How long the thread of a listener waits at most before it looks whether it must stop.
inline constexpr DurationNs kListenerWait = 100 * kMillisecond;

// What transports are made from. Everything outlives them.
struct DaemonLanesContext {
  const Settings& settings;
  const NumaNodes& core_nodes;  // [core loop]
  const Clock& clock;
  Random& random;  // for any thread
};

class DaemonLanes {
 public:
  virtual ~DaemonLanes() = default;

  // Serves the lanes of one core loop. Called once for each core loop.
  virtual absl::StatusOr<std::unique_ptr<transport::Transport>> MakeTransport(CoreIndex core) = 0;

  // Control exists; no thread of the daemon runs yet. transport_index: the position of this
  // transport in each core loop's list, for Lanes::AttachLane.
  virtual void Connect(ControlThread& thread, Control& control, std::uint8_t transport_index) = 0;

  // After Connect. The lanes that workers ask for on the data port; null: they ask elsewhere.
  virtual transport::LaneKind* lane_kind() { return nullptr; }
  // After Connect. Null: no lanes to other racks.
  virtual PeerLaneDialer* peer_dialer() { return nullptr; }

  // Accepts workers that do not come to the data port. The error names the setting.
  virtual absl::Status Start() { return absl::OkStatus(); }
  // Ends the threads that hand lanes to control. The data port is closed by then. Idempotent.
  virtual void Stop() {}
};

struct OpenedLanes {
  LaneTransport description;
  std::unique_ptr<DaemonLanes> lanes;  // null: this daemon does not serve the transport
};

struct DaemonLaneProvider {
  std::string_view name;  // as LaneTransport::name
  // An error ends the start of the daemon: the settings ask for what this host does not have.
  absl::StatusOr<OpenedLanes> (*open)(const DaemonLanesContext& context);
};

// All transports of this build, in the order in which core loops poll them. The first is tcp.
std::span<const DaemonLaneProvider> DaemonLaneProviders();

}  // namespace phub::server
