// FRED's network for concurrent collectives (Rashidi et al., "FRED: A Wafer-scale Fabric for 3D
// Parallel DNN Training", ISCA 2025), and its routing. Pure; any thread.
//
// FRED_m(P) is a Clos network of switches with two inputs and two outputs that sum and multicast.
// P = 2r ports have r input switches, r output switches and m middle networks FRED_m(r); input
// switch i is linked to input i of every middle network, and so are outputs. With an odd P the last
// port is connected to all middle networks by a demultiplexer and a multiplexer, which only
// forward; the middle networks have r + 1 ports then. FRED_m(2) is one switch.
//
// A flow has input ports, whose data are summed, and output ports, which receive the sum. At each
// level two flows that share an input switch or an output switch must take different middle
// networks, which is a colouring with m colours; then each middle network is routed in the same
// way. The search is complete up to a limit of work.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/topology_builder.h"

namespace phub::plan {

inline constexpr std::uint32_t kFredMiddlesMax = 8;

struct FredShape {
  std::uint32_t ports = 0;
  std::uint32_t middles = 0;
};

// The shape of a topology that Generate() made from fred:P,m; nullopt for other topologies.
std::optional<FredShape> FredShapeOf(const Topology& topology);

// Adds P members and FRED_m(P) to the builder. Fails if that exceeds the limits of a topology.
absl::Status BuildFred(const FredShape& shape, TopologyBuilder& builder);

struct FredFlow {
  std::vector<std::uint32_t> inputs;   // ports, ascending
  std::vector<std::uint32_t> outputs;  // ports, ascending
};

enum class FredVerdict : std::uint8_t { kRouted, kConflict, kUnknown };  // unknown: work exceeded
struct FredRoutes {
  FredVerdict verdict = FredVerdict::kUnknown;
  // If routed, by flow: the middle network at each level, from the outside. Shorter than the number
  // of levels if the flow is alone in a middle network: any one does there, and 0 is meant.
  std::vector<std::vector<std::uint32_t>> middles;
};
// REQUIRES: ports of different flows differ, for inputs and for outputs.
FredRoutes RouteFlows(const FredShape& shape, std::span<const FredFlow> flows);

// The names of the nodes from an input port to an output port through the given middle networks,
// without the members.
std::vector<std::string> FredPath(const FredShape& shape, std::uint32_t input, std::uint32_t output,
                                  std::span<const std::uint32_t> middles);

}  // namespace phub::plan
