// The JSON form of a topology, for programs. Field names are stable; additions raise the version in
// "format". Pure; any thread.
//
//   { "format": "phub.topology.v1",
//     "name": "racks:4x8@3",
//     "unit_bytes_per_s": 12500000000,      bytes per second of a link of bandwidth "1"
//     "members_forward": false,             optional; whether members forward for others
//     "nodes": [ {"name": "m0", "kind": "member", "place": [0, 2]}, ... ],
//     "links": [ {"from": "m0", "to": "leaf0", "bandwidth": "1", "latency_ns": 500}, ... ] }
//
// "kind" is "member", "aggregator" or "switch". Ranks follow the order of members. "bandwidth" is a
// string with an integer or a fraction of the unit, such as "8/3". "place" is optional: the node's
// coordinates in pictures. Links are directed.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/plan/topology.h"

namespace phub::plan {

std::string TopologyToJson(const Topology& topology);
// Errors name the place: "links[4]: unknown field 'speed'".
absl::StatusOr<Topology> ParseTopologyJson(std::string_view text);

}  // namespace phub::plan
