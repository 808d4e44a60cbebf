// A network of two levels whose switches sum: members under leaves, and spines that connect leaves.
// Groups are compiled jointly for such networks (spine_shares.h). Immutable; any thread.
//
// A leaf is a switch with members, or a member with links to several spines. A spine is a switch
// without members, with links to all leaves. A cable is the two links between a leaf and a spine.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/topology.h"

namespace phub::plan {

struct LeafSpine {
  std::vector<NodeIndex> leaves;
  std::vector<NodeIndex> spines;       // may be empty if there is only one leaf
  std::vector<std::uint32_t> leaf_of;  // by rank: index into leaves
  // By leaf and spine: capacity of the cable in each direction. All leaves divide their capacity
  // among the spines in the same proportions.
  std::vector<std::vector<std::int64_t>> cables;
  // By rank: capacity between the member and its leaf; 0 if the member is the leaf.
  std::vector<std::int64_t> member_capacity;

  bool IsMember(const Topology& topology, std::uint32_t leaf) const {
    return topology.IsMember(leaves[leaf]);
  }
  std::int64_t CapacityToSpines(std::uint32_t leaf) const;
};

// Fails with the node and the reason if the topology is not such a network.
absl::StatusOr<LeafSpine> FindLeavesAndSpines(const Topology& topology);

}  // namespace phub::plan
