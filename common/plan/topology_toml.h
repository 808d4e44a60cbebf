// Parses a topology in TOML, for files written by hand, and writes it. Pure: it opens no file.
//
//   name = "two racks"          # optional
//   unit = "100Gbit/s"          # a bandwidth of 1 (default: 100Gbit/s)
//   latency = "500ns"           # of links without their own latency (default: 500ns)
//   members_forward = false     # true: members forward for others, as in a torus
//   members = ["a", "b", "c"]   # in the order of ranks
//   switches = ["s"]            # switches that only forward
//   aggregators = []            # switches that sum and multicast
//   [[link]]
//   from = "a"
//   to = "s"
//   bandwidth = 1               # in units: 1 or "8/3"; or absolute: "40Gbit/s"
//   latency = "1us"             # optional
//   one_way = true              # optional (default: links in both directions)
//
// Errors name the line: "line 12: link a->s: the bandwidth must be positive". Unknown keys are
// errors. kTopologyTextBytesMax limits time and memory.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/plan/topology.h"

namespace phub::plan {

inline constexpr std::size_t kTopologyTextBytesMax = std::size_t{32} << 20;

absl::StatusOr<Topology> ParseTopologyToml(std::string_view text);

// Text that reads back to an equal topology. Members come first, and places in pictures are lost.
std::string TopologyToToml(const Topology& topology);

}  // namespace phub::plan
