// Topologies by a short name: FAMILY:SHAPE[,OPTION...]. Pure; any thread.
//
//   ring:8             8 members in a circle
//   mesh:4x4           a grid (any number of dimensions)
//   torus:4x4          a grid that wraps round; a dimension of 2 has one link each way, not two
//   switch:16          16 members on one switch
//   fattree:4x8@2      4 leaf switches of 8 members, 8 spine switches; every leaf has one link to
//                      every spine; @2 divides their bandwidth by 2 (oversubscription; @1 if
//                      absent)
//   racks:4x8@4        4 racks of 8 members; one uplink each to one core switch, of the bandwidth
//   of
//                      its members divided by 4
//   bigraph:4x8        EFLOPS' BiGraph(M,N): N switches in two halves, M members on each, one link
//                      between any two switches of different halves
//   random:12          12 members at random, on switches and on each other, all links both ways;
//                      the same for equal seed, members and switches
// Options:
//   bandwidth=100Gbit/s  what a unit link (a member's own) carries      latency=500ns  of every
//   link aggregate            switches sum and multicast (switch, fattree, racks, bigraph, random)
//   seed=7  switches=3   random only
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/plan/topology.h"

namespace phub::plan {

// The error names the part of `spec` that is wrong.
absl::StatusOr<Topology> Generate(std::string_view spec);

// "100Gbit/s", "12.5GB/s", "800Mbit/s", "1GiB/s" in bytes per second; nothing if it is not such a
// text, not a whole positive number of bytes per second, or out of range.
std::optional<std::int64_t> ParseBandwidth(std::string_view text);

}  // namespace phub::plan
