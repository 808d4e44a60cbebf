// The transports that a job's lanes may use, in the order in which they are tried. Derived from the
// client's registry (common/transport/client_lanes.h) and from JobOptions::transport.
//
// Owned by the job; outlives its lanes and its engine. Threads: as in ClientLanes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/session/daemon_link.h"
#include "common/transport/client_lanes.h"
#include "phub/client.h"

namespace phub::client {

struct LaneWay {
  const transport::ClientLaneProvider* provider = nullptr;
  std::unique_ptr<transport::ClientLanes> lanes;
  std::uint8_t transport_index = 0;  // in the engine's list of transports
};

class LaneWays {
 public:
  // daemon_host: host of the job's first daemon. boot_id: this host's; empty: unknown, and no
  // daemon counts as running on the same host.
  LaneWays(TransportChoice choice, const std::string& daemon_host, std::string boot_id);

  // For the engine. Call once, before any lane is opened.
  absl::StatusOr<std::vector<std::unique_ptr<transport::Transport>>> MakeTransports(
      std::uint32_t connections_max, std::size_t window_bytes);

  // At least one, the best first.
  const std::vector<LaneWay>& ways() const { return ways_; }
  // The target of a lane to the daemon over this transport. lane: index among all lanes of the
  // rack.
  transport::LaneTarget TargetOf(const LaneWay& way, const DaemonLink& link,
                                 std::uint32_t lane) const;

  // Registers memory of keys; see ClientLanes::Register().
  void Register(void* data, std::size_t bytes, transport::ClientLanes::MemoryUse use);

  bool registers_memory() const;  // some transport refers to it until the job ends

 private:
  const std::string boot_id_;
  std::vector<LaneWay> ways_;
};

}  // namespace phub::client
