#include "common/plan/subset.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/plan/verifier.h"

namespace phub::plan {
namespace {

// The same topology with its members in another order: the places of members[0], members[1]... have
// members[first], members[first + 1]... `nodes`: filled in with the node that each place has now.
absl::StatusOr<Topology> StartAt(const Topology& part, std::span<const NodeIndex> members,
                                 std::uint32_t first, std::vector<NodeIndex>& nodes) {
  std::vector<NodeIndex> places = nodes;  // [node]: its place now
  for (std::size_t i = 0; i < members.size(); ++i) {
    const NodeIndex member = members[(i + first) % members.size()];
    nodes[members[i].value] = member;
    places[member.value] = members[i];
  }
  TopologyParts parts = part.parts();
  for (std::uint32_t i = 0; i < nodes.size(); ++i) parts.nodes[i] = part.node(nodes[i]);
  for (Link& link : parts.links) {
    link.from = places[link.from.value];
    link.to = places[link.to.value];
  }
  return Topology::Create(std::move(parts));
}

}  // namespace

absl::StatusOr<Topology> WithMembers(const Topology& topology, std::span<const NodeIndex> members,
                                     std::span<const NodeIndex> aggregators) {
  TopologyParts parts = topology.parts();
  for (std::uint32_t i = 0; i < parts.nodes.size(); ++i) {
    const auto is_in = [i](std::span<const NodeIndex> nodes) {
      return std::ranges::find(nodes, NodeIndex{i}) != nodes.end();
    };
    if (!is_in(members) && !is_in(aggregators)) parts.nodes[i].kind = NodeKind::kSwitch;
  }
  if (!topology.members_forward()) {
    const auto is_out = [&](NodeIndex node) {
      return topology.IsMember(node) && std::ranges::find(members, node) == members.end();
    };
    std::erase_if(parts.links,
                  [&](const Link& link) { return is_out(link.from) || is_out(link.to); });
  }
  return Topology::Create(std::move(parts));
}

absl::StatusOr<Forest> PlanForMembers(
    const Topology& topology, std::span<const NodeIndex> members,
    const std::function<absl::StatusOr<Forest>(const Topology& part)>& make, std::uint32_t first,
    std::span<const NodeIndex> aggregators) {
  absl::StatusOr<Topology> part = WithMembers(topology, members, aggregators);
  if (!part.ok()) return part.status();
  // [node of the reordered part]: the node of the topology.
  std::vector<NodeIndex> nodes;
  for (std::uint32_t i = 0; i < topology.nodes().size(); ++i) nodes.push_back(NodeIndex{i});
  if (first != 0) {
    part = StartAt(*part, members, first, nodes);
    if (!part.ok()) return part.status();
  }
  absl::StatusOr<Forest> forest = make(*part);
  if (!forest.ok()) return forest.status();
  for (Path& path : forest->paths) {
    for (LinkIndex& link : path) {
      const Link& of_part = part->link(link);
      const std::optional<LinkIndex> found =
          topology.FindLink(nodes[of_part.from.value], nodes[of_part.to.value]);
      if (!found) return absl::InternalError("a plan uses a link that the topology lacks");
      link = *found;
    }
  }
  for (Tree& tree : forest->trees) {
    tree.home = nodes[tree.home.value];
    for (std::vector<Edge>* const edges : {&tree.reduce, &tree.gather}) {
      for (Edge& edge : *edges) {
        edge.from = nodes[edge.from.value];
        edge.to = nodes[edge.to.value];
      }
    }
  }
  if (members.size() < topology.members().size())
    forest->group.assign(members.begin(), members.end());
  if (const auto report = Verify(topology, *forest); !report.ok()) return report.status();
  return forest;
}

}  // namespace phub::plan
