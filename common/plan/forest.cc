#include "common/plan/forest.h"

#include <algorithm>

#include "fmt/core.h"

namespace phub::plan {

std::span<const NodeIndex> MembersOf(const Topology& topology, const Forest& forest) {
  return forest.group.empty() ? topology.members() : std::span<const NodeIndex>(forest.group);
}

std::uint32_t StepCount(const Forest& forest) {
  std::uint32_t count = 0;
  for (const Tree& tree : forest.trees)
    for (const auto* edges : {&tree.reduce, &tree.gather})
      for (const Edge& edge : *edges) count = std::max(count, edge.step + 1);
  return count;
}

std::size_t EdgeCount(const Forest& forest) {
  std::size_t count = 0;
  for (const Tree& tree : forest.trees) count += tree.reduce.size() + tree.gather.size();
  return count;
}

bool SumsInSwitches(const Topology& topology, const Forest& forest) {
  for (const Tree& tree : forest.trees)
    for (const auto* edges : {&tree.reduce, &tree.gather})
      for (const Edge& edge : *edges)
        if (!topology.IsMember(edge.from) || !topology.IsMember(edge.to)) return true;
  return false;
}

std::string DescribeEdge(const Topology& topology, const Forest& forest, std::size_t tree,
                         bool reduces, const Edge& edge) {
  const auto name = [&](NodeIndex node) {
    return node.value < topology.nodes().size() ? topology.node(node).name
                                                : fmt::format("node {}", node.value);
  };
  return fmt::format("tree {} (home {}), {} edge {}->{} at step {}", tree,
                     name(forest.trees[tree].home), reduces ? "reduce" : "gather", name(edge.from),
                     name(edge.to), edge.step);
}

PathIndex PathTable::Intern(Path path) {
  const auto next = PathIndex{static_cast<std::uint32_t>(forest_.paths.size())};
  const auto [found, is_new] = known_.try_emplace(std::move(path), next);
  if (is_new) forest_.paths.push_back(found->first);
  return found->second;
}

}  // namespace phub::plan
