// What control knows of a transport of data lanes: what a lane costs, and whether the daemons of
// other racks may use it. Control never names a transport: it reads this table, one entry for each
// transport that the daemon serves (server/transports/daemon_lanes.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace phub::server {

struct LaneTransport {
  // Unique. Descriptions of lanes start with it: "shm pid 4711 uid 1000".
  std::string name = {};

  // Memory of a worker's lane in addition to its staging slots, and in front of each slot. The
  // tenant is charged for every lane that the job may have.
  std::uint64_t lane_bytes = 0;
  std::uint32_t slot_header_bytes = 0;
  // For administrators: why a lane over this transport is as private as it is.
  std::string privacy = {};

  // Lanes to the daemons of other racks. Each of these transports is tried in the table's order;
  // tcp, which every daemon has, is used where none of them can be.
  enum class Peers : std::uint8_t {
    kNever,        // not made for it
    kUnavailable,  // see why_no_peers
    kOffered,      // where both daemons have it
    kRequired,     // without it a job that spans racks does not start
  };
  Peers peers = Peers::kNever;
  std::string why_no_peers = {};
  std::uint64_t peer_lane_bytes = 0;  // for each lane
};

// [transport_index of Command::kAttachLane]
using LaneTransports = std::vector<LaneTransport>;

// The largest of all: staging is the same for every transport.
std::uint32_t SlotHeaderBytes(const LaneTransports& transports);
std::uint64_t WorkerLaneBytes(const LaneTransports& transports);
std::uint64_t PeerLaneBytes(const LaneTransports& transports);
// The transport of a lane with this description; null: none of them.
const LaneTransport* FindTransportOf(const LaneTransports& transports, std::string_view lane);

}  // namespace phub::server
