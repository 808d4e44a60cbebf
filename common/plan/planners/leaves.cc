#include "common/plan/planners/leaves.h"

#include <algorithm>
#include <set>

namespace phub::plan {

std::vector<NodeIndex> LeavesOf(const Topology& topology) {
  std::vector<NodeIndex> leaf_of(topology.nodes().size());
  for (const NodeIndex member : topology.members()) {
    NodeIndex& leaf = leaf_of[member.value] = member;
    const auto links = topology.OutLinks(member);
    const NodeIndex first = topology.link(links[0]).to;
    if (!topology.IsMember(first) && std::all_of(links.begin(), links.end(), [&](LinkIndex link) {
          return topology.link(link).to == first;
        }))
      leaf = first;
  }
  return leaf_of;
}

bool HasLeaves(const Topology& topology) {
  const std::vector<NodeIndex> leaf_of = LeavesOf(topology);
  std::set<NodeIndex> leaves;
  for (const NodeIndex member : topology.members()) leaves.insert(leaf_of[member.value]);
  return leaves.size() < topology.members().size();
}

}  // namespace phub::plan
