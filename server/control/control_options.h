// What control is configured with: fixed from its start to its end. Any thread may read it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/plan/topology.h"
#include "server/control/lane_transport.h"
#include "server/core/exchange/rack_plan.h"

namespace phub::server {

// The control protocol's versions that this build speaks.
inline constexpr std::uint32_t kProtocolVersionMin = 1;
inline constexpr std::uint32_t kProtocolVersionMax = 1;

// A process of this host, as the kernel names it.
struct PeerProcess {
  std::int64_t pid = 0;
  std::uint32_t uid = 0;
  friend bool operator==(const PeerProcess&, const PeerProcess&) = default;
};

struct ControlOptions {
  std::string version = "0.1.0";  // of the daemon
  std::string commit;
  std::string simd_target;

  std::string lane_host;        // empty: where the client reached the control plane
  std::uint16_t lane_port = 0;  // of every core; see SetLaneEndpoint

  // The rack: control endpoints of its daemons, in the order of the configuration, and which of
  // them this is. Empty: a rack of its own.
  std::vector<std::string> rack_endpoints;
  std::uint32_t rack_self = 0;
  std::uint32_t daemons_in_rack() const {
    return rack_endpoints.empty() ? 1 : static_cast<std::uint32_t>(rack_endpoints.size());
  }

  // The racks: control endpoints of one daemon each, with the number that this one has in its own
  // (rack_self), which of them is this one's, and how they are connected: member r of the topology
  // is rack r. Empty: there is this one only.
  std::vector<std::string> racks;
  std::uint32_t rack_index = 0;
  std::shared_ptr<const plan::Topology> rack_topology;
  // It is measured by the daemons; then rack_topology stands in for it, and no plan is made for it.
  bool topology_is_measured = false;
  // So many of `racks`, the last, only sum and pass on, and have no ranks: they are the aggregating
  // switches of the topology, in its order. All of them, or none.
  std::uint32_t aggregator_count = 0;
  std::uint32_t racks_with_ranks() const {
    return static_cast<std::uint32_t>(racks.size()) - aggregator_count;
  }
  bool is_aggregator() const { return aggregator_count > 0 && rack_index >= racks_with_ranks(); }
  // "rack 2 (node7:7700)", "aggregator 5 (node9:7700)"
  std::string DescribeRack(RackIndex rack) const;
  bool is_anchor() const { return rack_self == 0; }  // the first daemon of its rack

  LaneTransports lane_transports;  // tcp first
  bool tls_lanes = false;          // lanes over tcp use TLS

  std::uint32_t chunk_bytes = 128 * 1024;              // when the job does not say
  std::uint32_t staging_bytes_per_lane = 1024 * 1024;  // when the job does not say

  std::uint32_t jobs_max = 1024;                            // running or being torn down
  std::uint64_t memory_bytes_max = std::uint64_t{1} << 62;  // of all jobs together
  std::uint32_t ended_jobs_max = 64;  // remembered for `job list` and `job get`
  std::size_t backlog_max = 65536;    // commands that wait for room in a core's queue

  DurationNs liveness_timeout = 2 * kSecond;
  DurationNs nonce_lifetime = 30 * kSecond;
  // How long a failure may wait to learn which key waits for the rank that died.
  DurationNs diagnosis_timeout = 200 * kMillisecond;
  // Between telling a job's workers that it failed and closing their lanes, so that they hear the
  // reason before they see the consequence.
  DurationNs teardown_delay = 100 * kMillisecond;
  // A job that nobody is in any more, though some ranks never came, ends after this.
  DurationNs abandoned_timeout = 30 * kSecond;
  // How long an administrator's question may wait for a core loop.
  DurationNs report_timeout = kSecond;
  // Policy wait, when the job does not say: how long a rank may be gone.
  DurationNs wait_timeout = 60 * kSecond;
  // How long a snapshot waits for its reader, and saved state for its next piece.
  DurationNs transfer_timeout = 30 * kSecond;
  // How long an administrator's drain lets jobs run on, when he does not say.
  DurationNs drain_timeout = 10 * kSecond;
};

}  // namespace phub::server
