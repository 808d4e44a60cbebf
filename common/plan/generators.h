// Topologies by a short name: FAMILY:SHAPE[,OPTION...]. Pure; any thread.
//
//   ring:8             8 members in a ring
//   mesh:4x4           a grid (any number of dimensions)
//   torus:4x4          a grid that wraps around; a dimension of 2 has one link in each direction
//   switch:16          16 members on one switch
//   fattree:4x8@2      4 leaf switches of 8 members, 8 spine switches; every leaf has one link to
//                      every spine; @2 divides the bandwidth of these links by 2 (oversubscription;
//                      default @1); spines=3: another number of spine switches
//   racks:4x8@4        4 racks of 8 members; each rack has an uplink to one core switch, with the
//                      bandwidth of its members divided by 4
//   bigraph:4x8        BiGraph(M,N) of EFLOPS: N switches in two halves, M members on each, one
//                      link between any two switches of different halves
//   random:12          12 members, randomly linked to switches and to each other, all links in both
//                      directions; deterministic for a seed, members and switches
//   fred:64,3          FRED's network with 64 ports and 3 middle networks at each level; its
//                      switches sum (common/plan/groups/fred.h)
// Options:
//   bandwidth=100Gbit/s  bandwidth of a unit link (a member's own link)
//   latency=500ns        latency of every link
//   aggregate            switches sum and multicast (switch, fattree, racks, bigraph, random)
//   seed=7  switches=3   random only
//   spines=3             fattree only
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/plan/topology.h"

namespace phub::plan {

// The error names the invalid part of `spec`.
absl::StatusOr<Topology> Generate(std::string_view spec);

// Parses "100Gbit/s", "12.5GB/s", "800Mbit/s", "1GiB/s" to bytes per second. nullopt if the text is
// not a bandwidth, is not a positive integer of bytes per second, or is out of range.
std::optional<std::int64_t> ParseBandwidth(std::string_view text);

}  // namespace phub::plan
