#include "common/plan/routes.h"

#include <map>
#include <utility>

#include "absl/status/status.h"
#include "common/base/check.h"

namespace phub::plan {
namespace {

constexpr std::uint16_t kUnreachable = 0xffff;
static_assert(kNodesMax < kUnreachable, "kUnreachable must not be a possible distance");

}  // namespace

Router::Router(const Topology& topology)
    : topology_(topology), distance_to_(topology.nodes().size()) {}

const std::vector<std::uint16_t>& Router::DistancesTo(NodeIndex to) {
  std::vector<std::uint16_t>& distance = distance_to_[to.value];
  if (!distance.empty()) return distance;
  distance.assign(topology_.nodes().size(), kUnreachable);
  distance[to.value] = 0;
  std::vector<NodeIndex> queue{to};
  for (std::size_t head = 0; head < queue.size(); ++head) {
    const NodeIndex node = queue[head];
    if (node != to && topology_.IsMember(node) && !topology_.members_forward()) continue;
    for (const LinkIndex index : topology_.InLinks(node)) {
      const NodeIndex previous = topology_.link(index).from;
      if (distance[previous.value] != kUnreachable) continue;
      distance[previous.value] = static_cast<std::uint16_t>(distance[node.value] + 1);
      queue.push_back(previous);
    }
  }
  return distance;
}

std::optional<std::uint32_t> Router::Distance(NodeIndex from, NodeIndex to) {
  const std::uint16_t distance = DistancesTo(to)[from.value];
  if (distance == kUnreachable) return std::nullopt;
  return distance;
}

std::optional<Path> Router::Route(NodeIndex from, NodeIndex to) {
  PHUB_CHECK(from != to, "node={}", from.value);
  const std::vector<std::uint16_t>& distance = DistancesTo(to);
  if (distance[from.value] == kUnreachable) return std::nullopt;
  const std::uint32_t choice = topology_.RankOf(to);
  Path path;
  std::vector<LinkIndex> choices;
  for (NodeIndex node = from; node != to;) {
    choices.clear();
    for (const LinkIndex index : topology_.OutLinks(node)) {
      const NodeIndex next = topology_.link(index).to;
      const bool may_pass = next == to || !topology_.IsMember(next) || topology_.members_forward();
      if (may_pass && distance[next.value] + 1 == distance[node.value]) choices.push_back(index);
    }
    PHUB_CHECK(!choices.empty(), "from={} to={} at={}", from.value, to.value, node.value);
    path.push_back(choices[choice % choices.size()]);
    node = topology_.link(path.back()).to;
  }
  return path;
}

absl::StatusOr<Forest> Reroute(const Forest& forest, const Topology& topology,
                               const std::function<NodeIndex(NodeIndex)>& place) {
  Forest result;
  result.planner = forest.planner;
  result.topology = topology.name();
  result.share_unit = forest.share_unit;
  PathTable paths(result);
  Router router(topology);
  std::map<std::pair<NodeIndex, NodeIndex>, PathIndex> known;
  for (const Tree& tree : forest.trees) {
    Tree& copy = result.trees.emplace_back();
    copy.home = place(tree.home);
    copy.share = tree.share;
    for (const bool reduces : {true, false}) {
      for (const Edge& edge : reduces ? tree.reduce : tree.gather) {
        const NodeIndex from = place(edge.from), to = place(edge.to);
        const auto [found, is_new] = known.try_emplace({from, to});
        if (is_new) {
          std::optional<Path> path = router.Route(from, to);
          if (!path) return absl::FailedPreconditionError("there is no path between two members");
          found->second = paths.Intern(*std::move(path));
        }
        (reduces ? copy.reduce : copy.gather).push_back({from, to, edge.step, found->second});
      }
    }
  }
  return result;
}

}  // namespace phub::plan
