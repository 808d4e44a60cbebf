#include "common/plan/subset.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/plan/verifier.h"

namespace phub::plan {

absl::StatusOr<Topology> WithMembers(const Topology& topology, std::span<const NodeIndex> members) {
  TopologyParts parts = topology.parts();
  for (std::uint32_t i = 0; i < parts.nodes.size(); ++i) {
    if (std::ranges::find(members, NodeIndex{i}) == members.end())
      parts.nodes[i].kind = NodeKind::kSwitch;
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
    const std::function<absl::StatusOr<Forest>(const Topology& part)>& make) {
  absl::StatusOr<Topology> part = WithMembers(topology, members);
  if (!part.ok()) return part.status();
  absl::StatusOr<Forest> forest = make(*part);
  if (!forest.ok()) return forest.status();
  for (Path& path : forest->paths) {
    for (LinkIndex& link : path) {
      const Link& of_part = part->link(link);
      const std::optional<LinkIndex> found = topology.FindLink(of_part.from, of_part.to);
      if (!found) return absl::InternalError("a plan uses a link that the topology lacks");
      link = *found;
    }
  }
  if (members.size() < topology.members().size())
    forest->group.assign(members.begin(), members.end());
  if (const auto report = Verify(topology, *forest); !report.ok()) return report.status();
  return forest;
}

}  // namespace phub::plan
