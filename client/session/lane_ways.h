// The transports that a job's lanes may use, in the order in which they are tried. Made of the
// client's registry (common/transport/client_lanes.h) and of what the program asked for.
//
// Owned by the job, and outlives its lanes and its engine. Threads: those of ClientLanes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

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
  // daemon_host: where the job's first daemon was reached. boot_id: of this host; empty: unknown,
  // and no daemon counts as running on the same host.
  LaneWays(TransportChoice choice, const std::string& daemon_host, std::string boot_id);

  // For the engine; before any lane is opened, and once.
  std::vector<std::unique_ptr<transport::Transport>> MakeTransports(std::uint32_t connections_max,
                                                                    std::size_t window_bytes);

  // The best first; at least one.
  const std::vector<LaneWay>& ways() const { return ways_; }
  // A lane of that daemon, as this way sees it. lane: among all of the rack's.
  transport::LaneTarget TargetOf(const LaneWay& way, const DaemonLink& link,
                                 std::uint32_t lane) const;

  // Memory of keys: see ClientLanes::Register.
  void Register(void* data, std::size_t bytes, transport::ClientLanes::MemoryUse use);

 private:
  const std::string boot_id_;
  std::vector<LaneWay> ways_;
};

}  // namespace phub::client
