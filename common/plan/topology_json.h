// The JSON form of a topology: what programs exchange. Field names are stable; additions raise the
// version in "format". Pure; any thread.
//
//   { "format": "phub.topology.v1",
//     "name": "racks:4x8@3",
//     "unit_bytes_per_s": 12500000000,      what a link of bandwidth "1" carries
//     "members_forward": false,             optional; members pass on what is not for them
//     "nodes": [ {"name": "m0", "kind": "member", "place": [0, 2]}, ... ],
//     "links": [ {"from": "m0", "to": "leaf0", "bandwidth": "1", "latency_ns": 500}, ... ] }
//
// "kind" is "member", "aggregator" or "switch"; ranks are given in the order of the members.
// "bandwidth" is a text, a whole number or a fraction of the unit: "8/3". "place" is optional and
// says where a picture shows the node. Links are directed.
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
