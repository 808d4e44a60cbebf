// Reads a topology that somebody wrote by hand. Pure: the text is given, nothing is opened.
//
//   name = "two racks"          # optional
//   unit = "100Gbit/s"          # what a bandwidth of 1 means; 100Gbit/s if absent
//   latency = "500ns"           # of links that give none; 500ns if absent
//   members_forward = false     # true: members pass on what is not for them, as a torus does
//   members = ["a", "b", "c"]   # their order is the order of ranks
//   switches = ["s"]            # only forward
//   aggregators = []            # switches that sum and multicast
//   [[link]]
//   from = "a"
//   to = "s"
//   bandwidth = 1               # of the unit: 1, "8/3", or "40Gbit/s"
//   latency = "1us"             # optional
//   one_way = true              # optional; without it the link is laid both ways
//
// Errors name the line: "line 12: link a->s: the bandwidth must be positive". Unknown keys are
// errors. Time and memory are bounded by kTopologyTextBytesMax.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "common/plan/topology.h"

namespace phub::plan {

inline constexpr std::size_t kTopologyTextBytesMax = std::size_t{32} << 20;

absl::StatusOr<Topology> ParseTopologyToml(std::string_view text);

}  // namespace phub::plan
