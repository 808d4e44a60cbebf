// Simulates the time of a plan: bandwidth shared between transfers, latency, and optionally the
// members' own work. Deterministic: equal input gives equal output, bit for bit. Pure; any thread.
//
// The data is cut into `pieces` equal pieces. Every edge of the forest sends each piece of its
// tree's share as one transfer. A transfer may start when
//  - its data is available: a reduce edge waits for all edges into its sender, a gather edge waits
//    for the result (at the home: for all reduce edges into it, and the optimizer);
//  - its sender has sent all transfers of lower waves over the same first link. The wave of a
//    transfer is its edge's step plus its piece: each piece is one step behind the piece before it.
//
// Flow mode: all active transfers share the links max-min fairly; every start and end of a transfer
// changes the rates. A transfer arrives one path latency after its last byte is sent. Ends of
// transfers are rounded. The error is less than a millionth of the duration with up to 4096
// different active flows, less than a hundredth with up to 131072, and less than a thirtieth with
// more. The result is never below the time that the busiest link needs for its bytes.
// Lockstep mode: waves run one after another. A wave takes the time of its busiest link plus its
// longest latency.
//
// Time is in integer picoseconds.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/forest.h"
#include "common/plan/topology.h"

namespace phub::plan {

inline constexpr std::uint32_t kPiecesMax = 4096;
inline constexpr std::size_t kTransfersMax = std::size_t{1}
                                             << 23;  // edges times pieces, in flow mode
inline constexpr std::int64_t kSizeBytesMax = std::int64_t{1} << 50;

enum class SimulationMode : std::uint8_t { kFlow, kLockstep };

struct SimulationOptions {
  std::int64_t size_bytes = std::int64_t{1} << 20;  // size of the data; every member has all of it
  std::uint32_t pieces = 1;
  SimulationMode mode = SimulationMode::kFlow;
  // The speed of a member's or aggregating switch's own work, one transfer at a time. 0: the work
  // takes no time.
  double sum_bytes_per_s = 0;        // adding a received partial sum
  double optimizer_bytes_per_s = 0;  // running the optimizer at the home
  bool keep_timeline = false;        // flow mode only
  // Flow mode only: the simulation fails with ResourceExhausted if it takes more. 0: no limit.
  std::uint64_t work_max = 0;
};

struct TransferTimes {
  std::uint32_t tree = 0;
  std::uint32_t edge = 0;  // index within the tree's phase
  std::uint32_t piece = 0;
  bool reduces = false;
  std::int64_t started_ps = 0;
  std::int64_t sent_ps = 0;
  std::int64_t arrived_ps = 0;
};

struct SimulationResult {
  std::int64_t time_ps = 0;
  std::uint64_t work = 0;        // flow mode: events, and flows and links visited
  std::vector<double> link_use;  // by link: bytes carried / bytes possible
  std::vector<TransferTimes> timeline;

  double seconds() const { return static_cast<double>(time_ps) * 1e-12; }
};

// REQUIRES: Verify has accepted the forest on this topology. Fails if options are out of range, if
// there are too many transfers, or if the time could exceed 63 bits of picoseconds.
absl::StatusOr<SimulationResult> Simulate(const Topology& topology, const Forest& forest,
                                          const SimulationOptions& options);

// The lockstep times for several numbers of pieces, in the order of `pieces`, from one pass over
// the forest. Ignores the mode and the pieces of `options`.
absl::StatusOr<std::vector<double>> LockstepSeconds(const Topology& topology, const Forest& forest,
                                                    const SimulationOptions& options,
                                                    std::span<const std::uint32_t> pieces);

// A trace for chrome://tracing and Perfetto: one process per sender, one thread per link, one event
// per transfer from its start to its last byte sent.
std::string ChromeTrace(const Topology& topology, const Forest& forest,
                        const SimulationResult& result);

}  // namespace phub::plan
