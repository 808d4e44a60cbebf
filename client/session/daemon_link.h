// A worker's view of one daemon of its rack: its control channel, the session with it, its lanes,
// and the memory that both share. RackWatch tracks the daemon's health (alive, lost, draining).
//
// Owned by the job. One thread (rack_join.h) creates it and joins. After that other threads use
// only `channel` and `regions`, which synchronize themselves.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/session/control_channel.h"
#include "client/session/endpoint.h"
#include "client/session/measured_clock.h"
#include "common/base/clock.h"
#include "common/base/priority_levels.h"
#include "common/transport/shm/shared_regions.h"
#include "phub/v1/session.pb.h"

namespace phub::client {

struct DaemonLink {
  DaemonLink(std::uint32_t position_in, Endpoint endpoint_in,
             std::unique_ptr<ControlChannel> channel_in)
      : position(position_in),
        endpoint(std::move(endpoint_in)),
        channel(std::move(channel_in)),
        regions(std::make_shared<transport::SharedRegions>()) {}

  const std::uint32_t position;  // in the rack's list; 0: the anchor
  const Endpoint endpoint;       // of its control plane
  std::unique_ptr<ControlChannel> channel;
  v1::JoinResponse joined;             // fixed after the commit
  std::optional<MeasuredClock> clock;  // fixed after the commit; none: an older daemon
  std::uint32_t first_lane = 0;  // its core loops are lanes [first_lane, first_lane + lane_count)

  // Memory that this rank and the daemon both map, for all lanes.
  const std::shared_ptr<transport::SharedRegions> regions;

  std::uint32_t lane_count() const { return static_cast<std::uint32_t>(joined.cores_size()); }
  bool HasLane(std::uint32_t lane) const {
    return lane >= first_lane && lane - first_lane < lane_count();
  }
};

using DaemonLinks = std::vector<std::unique_ptr<DaemonLink>>;

inline std::uint32_t LaneCount(const DaemonLinks& links) {
  return links.back()->first_lane + links.back()->lane_count();
}
// The shortest liveness_timeout among the daemons.
inline DurationNs ShortestLivenessTimeout(const DaemonLinks& links) {
  DurationNs shortest = links.front()->joined.liveness_timeout_ns();
  for (const std::unique_ptr<DaemonLink>& link : links)
    shortest = std::min<DurationNs>(shortest, link->joined.liveness_timeout_ns());
  return shortest;
}
// EngineConfig::yielding_slots. Lanes of all daemons are limited, or none.
inline std::uint32_t YieldingSlotsOf(const DaemonLinks& links) {
  const bool all =
      std::ranges::all_of(links, [](const auto& link) { return link->joined.priority_classes(); });
  return all ? YieldingSlotsMax(links.front()->joined.slots_per_lane()) : 0;
}
inline DaemonLink& LinkOfLane(const DaemonLinks& links, std::uint32_t lane) {
  std::size_t i = 0;
  while (!links[i]->HasLane(lane)) ++i;
  return *links[i];
}

}  // namespace phub::client
