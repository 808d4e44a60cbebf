#include "common/plan/planners/rank_forest.h"

#include <map>
#include <utility>

#include "common/plan/planners/relay.h"
#include "fmt/core.h"

namespace phub::plan {

absl::Status CheckEdges(const Topology& topology) {
  const std::size_t count = topology.members().size();
  if (2 * count * (count - 1) > kEdgesMax)
    return absl::FailedPreconditionError(
        fmt::format("{} members need more than {} edges", count, kEdgesMax));
  return absl::OkStatus();
}

absl::Status CheckAllPairs(const Topology& topology) {
  if (absl::Status status = CheckEdges(topology); !status.ok()) return status;
  if (topology.members_forward()) return absl::OkStatus();  // the topology is connected
  Router router(topology);
  for (const NodeIndex to : topology.members())
    for (const NodeIndex from : topology.members())
      if (from != to && !router.Distance(from, to))
        return absl::FailedPreconditionError(
            fmt::format("{} reaches {} only through members, which do not forward",
                        topology.node(from).name, topology.node(to).name));
  return absl::OkStatus();
}

std::vector<NodeIndex> NaturalOrder(const Topology& topology) {
  return {topology.members().begin(), topology.members().end()};
}

RankForest::RankForest(const Topology& topology, std::string_view planner,
                       std::vector<NodeIndex> order, std::int64_t share_unit)
    : topology_(topology), paths_(forest_), router_(topology), order_(std::move(order)) {
  forest_.planner = planner;
  forest_.topology = topology.name();
  forest_.share_unit = share_unit;
}

void RankForest::AddTree(std::size_t home, std::int64_t share) {
  Tree& tree = forest_.trees.emplace_back();
  tree.home = order_[home];
  tree.share = share;
}

void RankForest::Reduce(std::size_t from, std::size_t to, std::uint32_t step) {
  forest_.trees.back().reduce.push_back(Route(from, to, step));
}

void RankForest::Gather(std::size_t from, std::size_t to, std::uint32_t step) {
  forest_.trees.back().gather.push_back(Route(from, to, step));
}

void RankForest::Mirror(std::size_t from, std::size_t to, std::uint32_t step, std::uint32_t steps) {
  Reduce(from, to, step);
  Gather(to, from, 2 * steps - 1 - step);
}

Forest RankForest::Take() { return is_relayed_ ? Relay(topology_, forest_) : std::move(forest_); }

Edge RankForest::Route(std::size_t from, std::size_t to, std::uint32_t step) {
  const NodeIndex sender = order_[from];
  const NodeIndex receiver = order_[to];
  if (is_relayed_) return {sender, receiver, step, {}};  // Take() discards all paths
  const std::uint64_t key = (std::uint64_t{sender.value} << 32) | receiver.value;
  auto [found, is_new] = known_.try_emplace(key);
  if (is_new) {
    std::optional<Path> path = router_.Route(sender, receiver);
    is_relayed_ = !path.has_value();
    if (is_relayed_) return {sender, receiver, step, {}};
    found->second = paths_.Intern(*std::move(path));
  }
  return {sender, receiver, step, found->second};
}

std::vector<std::vector<std::uint32_t>> GroupsBySwitch(const Topology& topology) {
  std::map<NodeIndex, std::vector<std::uint32_t>> groups;  // by first switch, or member
  for (const NodeIndex member : topology.members()) {
    NodeIndex group = member;
    for (const LinkIndex link : topology.OutLinks(member)) {
      const NodeIndex next = topology.link(link).to;
      if (topology.IsMember(next)) continue;
      if (group == member || next < group) group = next;
    }
    groups[group].push_back(topology.RankOf(member));
  }
  std::vector<std::vector<std::uint32_t>> result;
  for (auto& [node, ranks] : groups) result.push_back(std::move(ranks));
  return result;
}

}  // namespace phub::plan
