// The one place where the daemon's transports are listed.
#include <array>

#include "server/transports/daemon_lanes.h"

namespace phub::server {

DaemonLaneProvider TcpDaemonLanes();
DaemonLaneProvider ShmDaemonLanes();
DaemonLaneProvider VerbsDaemonLanes();

std::span<const DaemonLaneProvider> DaemonLaneProviders() {
  static const std::array providers = {TcpDaemonLanes(), ShmDaemonLanes(), VerbsDaemonLanes()};
  return providers;
}

}  // namespace phub::server
