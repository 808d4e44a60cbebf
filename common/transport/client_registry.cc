// The list of the client's transports.
#include <array>

#include "common/transport/client_lanes.h"

namespace phub::transport {

ClientLaneProvider TcpClientLanes();
ClientLaneProvider ShmClientLanes();
ClientLaneProvider VerbsClientLanes();

std::span<const ClientLaneProvider> ClientLaneProviders() {
  static const std::array providers = {TcpClientLanes(), ShmClientLanes(), VerbsClientLanes()};
  return providers;
}

}  // namespace phub::transport
