#include "server/control/lane_transport.h"

#include <algorithm>

namespace phub::server {

std::uint32_t SlotHeaderBytes(const LaneTransports& transports) {
  std::uint32_t bytes = 0;
  for (const LaneTransport& each : transports) bytes = std::max(bytes, each.slot_header_bytes);
  return bytes;
}

std::uint64_t WorkerLaneBytes(const LaneTransports& transports) {
  std::uint64_t bytes = 0;
  for (const LaneTransport& each : transports) bytes += each.lane_bytes;
  return bytes;
}

std::uint64_t PeerLaneBytes(const LaneTransports& transports) {
  std::uint64_t bytes = 0;
  for (const LaneTransport& each : transports) bytes += each.peer_lane_bytes;
  return bytes;
}

const LaneTransport* FindTransportOf(const LaneTransports& transports, std::string_view lane) {
  const auto found = std::ranges::find_if(
      transports, [lane](const LaneTransport& each) { return lane.starts_with(each.name); });
  return found == transports.end() ? nullptr : &*found;
}

}  // namespace phub::server
