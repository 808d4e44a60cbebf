// Reads phub's own sketches, which are for any topology. Pure: it opens no file.
//
//   group_size = 8            # ranks 0 to 7 are a group, 8 to 15 the next; or by the names of
//   members: groups = [["a", "b"], ["c", "d"]] symmetry = [[8, 32]]      # rank r is equivalent to
//   (r + 8) mod 32, in every block of 32 ranks trees_per_member = 2      # default: the planner's
//   choice prefer = "minmax"         # of plans that take the same time: uc-min, uc-max, minmax,
//   maxmin [between_groups]          # transfers between members of different groups senders = [0]
//   # places of members within their groups; default: all receivers = [0] pairs = [[1, 0], [3, 2]]
//   # sender and receiver, instead of `senders` and `receivers` may_return = false        # data do
//   not come back into their home's group (default: true) own_first = true          # a sender's
//   own data come first (default: false) [between_groups.carries]  # whose data a sender sends to
//   other groups; default: everybody's 0 = [0, 1, 2, 3]
//   [[forbid]]                # links that no plan uses; a name or a list of names
//   from = ["m0", "m1"]
//   to = "core"
//
// All keys are optional. common/plan/sketches/sketch_rules.h defines what a plan must follow.
// Errors name the line, or the key. Unknown keys are errors.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "common/plan/sketches/sketch_rules.h"
#include "common/plan/topology.h"

namespace phub::plan {

struct TopologySketch {
  Topology topology;  // without the forbidden links
  SketchRules rules;
};

absl::StatusOr<TopologySketch> ParseSketchToml(std::string_view text, const Topology& topology);

}  // namespace phub::plan
