// Builds trees whose vertices are members and aggregating switches from the links that they use.
// One thread.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "common/plan/planners/out_forest.h"

namespace phub::plan {

// The links of one out-tree, added in any order.
class SwitchTree {
 public:
  // On the reversed topology (Topology::Reversed) links have the same indices, so the links of an
  // in-tree can be added: `is_reversed` swaps their ends.
  SwitchTree(const Topology& topology, bool is_reversed)
      : topology_(topology), is_reversed_(is_reversed) {}

  // REQUIRES: the link exists. A link that is already in the tree is ignored.
  void Add(NodeIndex from, NodeIndex to);

  // Switches with one child become part of paths.
  OutTree Contract(NodeIndex home, std::int64_t share) const;

 private:
  const Topology& topology_;
  const bool is_reversed_;
  std::map<NodeIndex, std::vector<NodeIndex>> children_;
};

}  // namespace phub::plan
