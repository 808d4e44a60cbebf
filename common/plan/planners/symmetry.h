// Finds symmetries of a topology, for planners that grow one tree for all equivalent members. Pure;
// any thread.
//
// A symmetry is a permutation of the nodes that preserves kinds, links, bandwidths and latencies.
// The search tries rotations of ranks within blocks, r -> (r + offset) mod block, which covers
// rings, tori, equal racks and equal GPU servers, and finds a permutation of the switches for each.
// It keeps those whose group moves every member: only the identity maps a member to itself. A
// topology without such rotations has only the identity.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/sketches/sketch_rules.h"
#include "common/plan/topology.h"

namespace phub::plan {

using Permutation = std::vector<NodeIndex>;  // by node

struct Symmetry {
  std::vector<Permutation> elements;           // the whole group; the identity comes first
  std::vector<std::uint32_t> representatives;  // ranks: one member of each orbit
  std::vector<std::uint32_t> orbit_of;         // by link: its orbit
  // By link: elements that map the link to itself. If one tree uses the link, that many equivalent
  // trees use it at the same time.
  std::vector<std::uint32_t> uses;
};

Symmetry FindSymmetry(const Topology& topology);
// The group of the rotations that the sketch declares, or else the symmetries that also preserve
// its rules about crossings. Fails if a declared rotation is not such a symmetry.
absl::StatusOr<Symmetry> SymmetryUnder(const Topology& topology, const SketchRules& rules);

}  // namespace phub::plan
