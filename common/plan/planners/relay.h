// Lets planners that choose senders and receivers only, such as star and ring,
// work where some members reach each other only through other members, for
// instance on NVLink meshes. Pure; any thread.
#pragma once

#include "common/plan/forest.h"
#include "common/plan/topology.h"

namespace phub::plan {

// Replaces every edge by a shortest route over members that relay, split at
// these members. They become vertices: they add their own contribution on the
// way to the home, and keep the result on the way back. A member that is
// already in a tree keeps its place. Steps follow the depth. Paths of the given
// edges are ignored.
Forest Relay(const Topology& topology, const Forest& forest);

}  // namespace phub::plan
