#include "common/plan/groups/fred_plans.h"

#include <algorithm>
#include <utility>

#include "common/plan/groups/switch_trees.h"

namespace phub::plan {
namespace {

FredRoutes RouteTogether(const FredShape& shape, const std::vector<const Group*>& groups) {
  std::vector<FredFlow> flows;
  for (const Group* group : groups) flows.push_back({group->ranks, group->ranks});
  return RouteFlows(shape, flows);
}

void AddWay(const Topology& topology, NodeIndex home, const std::vector<std::string>& way,
            NodeIndex member, SwitchTree& tree) {
  NodeIndex before = home;
  for (const std::string& name : way) {
    const NodeIndex next = *topology.FindNode(name);
    tree.Add(before, next);
    before = next;
  }
  tree.Add(before, member);
}

struct Turn {
  std::vector<std::uint32_t> groups;
  FredRoutes routes;
};

}  // namespace

FredTurns RouteGroups(const FredShape& shape, const std::vector<const Group*>& groups) {
  FredTurns result;
  result.turn_of.assign(groups.size(), 0);
  FredRoutes all = RouteTogether(shape, groups);
  if (all.verdict == FredVerdict::kRouted) {
    result.middles = std::move(all.middles);
    return result;
  }
  result.is_proven = all.verdict == FredVerdict::kConflict;
  std::vector<Turn> turns;
  for (std::uint32_t i = 0; i < groups.size(); ++i) {
    std::uint32_t turn = 0;
    for (; turn < turns.size(); ++turn) {
      std::vector<const Group*> together;
      for (const std::uint32_t other : turns[turn].groups) together.push_back(groups[other]);
      together.push_back(groups[i]);
      FredRoutes routes = RouteTogether(shape, together);
      result.is_proven &= routes.verdict != FredVerdict::kUnknown;
      if (routes.verdict != FredVerdict::kRouted) continue;
      turns[turn].routes = std::move(routes);
      break;
    }
    if (turn == turns.size()) turns.push_back({{}, RouteTogether(shape, {groups[i]})});
    turns[turn].groups.push_back(i);
    result.turn_of[i] = turn;
  }
  result.turns = static_cast<std::uint32_t>(turns.size());
  result.middles.resize(groups.size());
  for (const Turn& turn : turns)
    for (std::size_t place = 0; place < turn.groups.size(); ++place)
      result.middles[turn.groups[place]] = turn.routes.middles[place];
  return result;
}

absl::StatusOr<Forest> FredForest(const Topology& topology, const FredShape& shape,
                                  const Group& group, std::span<const std::uint32_t> middles,
                                  std::span<const NodeIndex> homes) {
  OutForest up, down;
  up.share_unit = down.share_unit = static_cast<std::int64_t>(homes.size());
  for (const NodeIndex home : homes) {
    const std::uint32_t home_port = topology.RankOf(home);
    SwitchTree reduce(topology, true), gather(topology, false);
    for (const std::uint32_t port : group.ranks) {
      if (port == home_port) continue;
      const NodeIndex member = topology.members()[port];
      std::vector<std::string> way = FredPath(shape, home_port, port, middles);
      AddWay(topology, home, way, member, gather);
      // The reduce tree is added from the home outwards.
      way = FredPath(shape, port, home_port, middles);
      std::reverse(way.begin(), way.end());
      AddWay(topology, home, way, member, reduce);
    }
    up.trees.push_back(reduce.Contract(home, 1));
    down.trees.push_back(gather.Contract(home, 1));
  }
  return PairPhases(topology, "groups", up, down);
}

}  // namespace phub::plan
