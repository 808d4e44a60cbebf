// The JSON form of a plan. Field names are stable; additions raise the version in "format".
// Pure; any thread.
//
//   { "format": "phub.plan.v1",           phub.plan.v2 for the plan of a group
//     "planner": "ring",                  the planner's name
//     "topology": "torus:4x4",            the topology's name
//     "members": ["m0", "m1"],            only in phub.plan.v2: the group, in the order of ranks
//     "paths": [ ["m0", "m1"], ... ],     nodes from sender to receiver; each path once
//     "trees": [
//       { "home": "m0",                   the member that gets the sum and runs the optimizer
//         "share": "1/16",                fraction of the data; the trees' shares sum to 1
//         "reduce": [ {"from": "m1", "to": "m2", "step": 0, "path": 4}, ... ],
//         "gather": [ ... ] }, ... ] }    "path" is an index into "paths"
//
// Steps are counted from 0 through both phases. common/plan/forest.h explains trees.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/plan/forest.h"

namespace phub::plan {

inline constexpr std::size_t kPlanTextBytesMax = std::size_t{256} << 20;

// Which plans a reader accepts. Daemons run only plans for all members.
enum class PlanScope : std::uint8_t { kAllMembers, kGroupsToo };

std::string ForestToJson(const Topology& topology, const Forest& forest);
// Errors name the place: "paths[3]: torus:4x4 has no link m1->m9". Does not verify the plan.
absl::StatusOr<Forest> ParseForestJson(const Topology& topology, std::string_view text,
                                       PlanScope scope = PlanScope::kAllMembers);

}  // namespace phub::plan
