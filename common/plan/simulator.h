// How long a plan takes: bandwidth shared between transfers, latency, and optionally the members'
// own work. Deterministic: equal input gives equal output, bit for bit. Pure; any thread.
//
// The data are cut into `pieces` equal pieces, and every edge of the forest sends each piece of its
// tree's share as one transfer. A transfer may start when
//  - its data are there: a reduce edge waits for all edges into its sender, a gather edge for the
//    result (at the home: for all reduce edges into it, and the optimizer);
//  - its sender has sent, on the same first link, everything of a lower wave. The wave of a
//    transfer is its edge's step plus its piece: step by step, with the pieces one step behind each
//    other.
//
// Flow mode: all transfers under way share the links max-min fairly; every start and end changes
// the shares. A transfer arrives one path latency after its last byte was sent. Ends of transfers
// are rounded by less than a millionth of their duration; where more than 4096 different flows are
// under way by less than a hundredth, and with more than 131072 by less than a thirtieth. Lockstep
// mode: waves one after the other, each as long as its busiest link needs, plus the longest latency
// in it.
//
// Time is in whole picoseconds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/forest.h"
#include "common/plan/topology.h"

namespace phub::plan {

inline constexpr std::uint32_t kPiecesMax = 4096;
inline constexpr std::size_t kTransfersMax = std::size_t{1} << 23;  // edges times pieces
inline constexpr std::int64_t kSizeBytesMax = std::int64_t{1} << 50;

enum class SimulationMode : std::uint8_t { kFlow, kLockstep };

struct SimulationOptions {
  std::int64_t size_bytes = std::int64_t{1} << 20;  // of all data, at every member
  std::uint32_t pieces = 1;
  SimulationMode mode = SimulationMode::kFlow;
  // A member's (or aggregating switch's) own work, one transfer at a time; 0: takes no time.
  double sum_bytes_per_s = 0;        // adding a partial sum that arrived
  double optimizer_bytes_per_s = 0;  // updating a shard at its home
  bool keep_timeline = false;        // flow mode only
};

struct TransferTimes {
  std::uint32_t tree = 0;
  std::uint32_t edge = 0;  // within its phase
  std::uint32_t piece = 0;
  bool reduces = false;
  std::int64_t started_ps = 0;
  std::int64_t sent_ps = 0;
  std::int64_t arrived_ps = 0;
};

struct SimulationResult {
  std::int64_t time_ps = 0;
  std::vector<double> link_use;  // by link: bytes carried / bytes that could have been
  std::vector<TransferTimes> timeline;

  double seconds() const { return static_cast<double>(time_ps) * 1e-12; }
};

// The forest must have passed Verify on this topology. Errors: options out of range, too many
// transfers, a time beyond 63 bits of picoseconds.
absl::StatusOr<SimulationResult> Simulate(const Topology& topology, const Forest& forest,
                                          const SimulationOptions& options);

// For chrome://tracing and Perfetto: one process per sender, one thread per link, one event per
// transfer from start to the last byte sent.
std::string ChromeTrace(const Topology& topology, const Forest& forest,
                        const SimulationResult& result);

}  // namespace phub::plan
