#include "common/plan/groups/switch_trees.h"

#include <algorithm>
#include <utility>

namespace phub::plan {

void SwitchTree::Add(NodeIndex from, NodeIndex to) {
  std::vector<NodeIndex>& list = children_[from];
  if (std::find(list.begin(), list.end(), to) == list.end()) list.push_back(to);
}

OutTree SwitchTree::Contract(NodeIndex home, std::int64_t share) const {
  OutTree tree{home, share, {}};
  struct Step {
    NodeIndex vertex;  // the last vertex on the way to `node`
    Path path;         // from it
    NodeIndex node;
  };
  std::vector<Step> waiting{{home, {}, home}};
  for (std::size_t head = 0; head < waiting.size(); ++head) {
    const Step step = std::move(waiting[head]);
    const auto children = children_.find(step.node);
    const std::size_t count = children == children_.end() ? 0 : children->second.size();
    const bool is_vertex = topology_.IsMember(step.node) || count != 1;
    if (is_vertex && step.node != home)
      tree.edges.push_back({step.vertex, step.node, 0, step.path});
    for (std::size_t i = 0; i < count; ++i) {
      const NodeIndex child = children->second[i];
      Path path = is_vertex ? Path{} : step.path;
      path.push_back(is_reversed_ ? *topology_.FindLink(child, step.node)
                                  : *topology_.FindLink(step.node, child));
      waiting.push_back({is_vertex ? step.node : step.vertex, std::move(path), child});
    }
  }
  StepsByDepth(tree);
  return tree;
}

}  // namespace phub::plan
