// Plans for some members of a topology, made by planners that know nothing of groups: they plan for
// a topology in which the other members are not members. Others neither sum nor relay; where
// members forward traffic, as in a torus, their links stay. Switches that sum only forward, except
// those that the caller names. Pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/statusor.h"
#include "common/plan/forest.h"
#include "common/plan/topology.h"

namespace phub::plan {

// The topology with these members only. Nodes keep their indices. `aggregators`: the switches that
// still sum. REQUIRES: two or more members of the topology, in ascending order of ranks.
absl::StatusOr<Topology> WithMembers(const Topology& topology, std::span<const NodeIndex> members,
                                     std::span<const NodeIndex> aggregators = {});

// Makes a plan for these members with `make`, which plans for all members of WithMembers(). The
// plan is verified for the whole topology. `make` sees the members in their order from
// members[first] on, so planners that begin at the first member begin at this one.
absl::StatusOr<Forest> PlanForMembers(
    const Topology& topology, std::span<const NodeIndex> members,
    const std::function<absl::StatusOr<Forest>(const Topology& part)>& make,
    std::uint32_t first = 0, std::span<const NodeIndex> aggregators = {});

}  // namespace phub::plan
