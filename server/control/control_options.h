// The configuration of control. It is immutable, so any thread may read it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/plan/topology.h"
#include "server/control/lane_transport.h"
#include "server/control/turn_budget.h"
#include "server/core/exchange/rack_plan.h"

namespace phub::server {

// The versions of the control protocol that this build supports.
inline constexpr std::uint32_t kProtocolVersionMin = 1;
inline constexpr std::uint32_t kProtocolVersionMax = 1;

// A process on this host, as the kernel identifies it.
struct PeerProcess {
  std::int64_t pid = 0;
  std::uint32_t uid = 0;
  friend bool operator==(const PeerProcess&, const PeerProcess&) = default;
};

struct ControlOptions {
  std::string version = "0.1.0";  // the version of phubd
  std::string commit;
  std::string simd_target;

  std::string lane_host;        // empty: the host where the client reached control
  std::uint16_t lane_port = 0;  // of every core; see SetLaneEndpoint

  // The control endpoints of the daemons of this rack, in the order of the configuration, and the
  // index of this daemon. Empty: this daemon is the only one of its rack.
  std::vector<std::string> rack_endpoints;
  std::uint32_t rack_self = 0;
  std::uint32_t daemons_in_rack() const {
    return rack_endpoints.empty() ? 1 : static_cast<std::uint32_t>(rack_endpoints.size());
  }

  // The control endpoint of one daemon of each rack: the daemon with index rack_self, which makes
  // up this daemon's plane. rack_index is this daemon's rack. Member r of the topology is rack r.
  // Empty: there is only this rack.
  std::vector<std::string> racks;
  std::uint32_t rack_index = 0;
  std::shared_ptr<const plan::Topology> rack_topology;
  // The daemons measure the topology. Then rack_topology is a placeholder, and plans do not use it.
  bool topology_is_measured = false;
  // The last aggregator_count entries of `racks` are aggregators: they have no ranks, and only sum
  // and forward. They are the aggregating switches of the topology, in its order. The value is
  // either 0 or the number of those switches.
  std::uint32_t aggregator_count = 0;
  std::uint32_t racks_with_ranks() const {
    return static_cast<std::uint32_t>(racks.size()) - aggregator_count;
  }
  bool is_aggregator() const { return aggregator_count > 0 && rack_index >= racks_with_ranks(); }
  // "rack 2 (node7:7700)", "aggregator 5 (node9:7700)"
  std::string DescribeRack(RackIndex rack) const;
  bool is_anchor() const { return rack_self == 0; }  // the first daemon of its rack

  // The place of this daemon in the cluster's view, and the view's number and digest; 0: racks and
  // daemons were listed by hand. Daemons with equal views agree, at whatever endpoints they are.
  std::string place;
  std::int64_t view = 0;
  std::string view_digest;

  LaneTransports lane_transports;  // tcp first
  bool tls_lanes = false;          // lanes over tcp use TLS

  std::uint32_t chunk_bytes = 128 * 1024;              // default for jobs
  std::uint32_t staging_bytes_per_lane = 1024 * 1024;  // default for jobs

  std::uint32_t jobs_max = 1024;                            // running or being torn down
  std::uint64_t memory_bytes_max = std::uint64_t{1} << 62;  // for all jobs together
  std::uint32_t ended_jobs_max = 64;  // remembered for `job list` and `job get`
  std::size_t backlog_max = 65536;    // commands that wait for space in the queue of a core loop
  TurnBudget turn;                    // of control

  DurationNs liveness_timeout = 2 * kSecond;
  DurationNs nonce_lifetime = 30 * kSecond;
  // How long the report of a failure may be delayed to find out which key waits for the dead rank.
  DurationNs diagnosis_timeout = 200 * kMillisecond;
  // The delay between notifying the workers of a job that it failed and closing their lanes, so
  // that they learn the reason before their lanes close.
  DurationNs teardown_delay = 100 * kMillisecond;
  // A job whose joined ranks are all gone, although some ranks never joined, ends after this time.
  DurationNs abandoned_timeout = 30 * kSecond;
  // How long a query of an administrator may wait for a core loop.
  DurationNs report_timeout = kSecond;
  // Policy wait: the default for how long a rank may be lost.
  DurationNs wait_timeout = 60 * kSecond;
  // How long a snapshot waits for its reader, and a checkpoint load for its next piece.
  DurationNs transfer_timeout = 30 * kSecond;
  // How long running jobs may continue while the daemon drains, by default.
  DurationNs drain_timeout = 10 * kSecond;
};

}  // namespace phub::server
