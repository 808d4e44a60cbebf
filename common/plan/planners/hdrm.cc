// HDRM, halving-doubling with rank mapping (Dong et al., "EFLOPS: Algorithm and System Co-Design
// for a High Performance Distributed Training Platform", HPCA 2020), for BiGraph(M,N): N switches
// in two halves, one link between any two switches of different halves, M members on each switch.
// Members on different halves have exactly one path, over two switches.
//
// The exchanges of halving-doubling are the edges of a hypercube. A hypercube is bipartite: each
// edge connects a rank with an even number of set bits and one with an odd number. With even ranks
// on one half and odd ranks on the other, every exchange crosses between the halves. Members in
// slot j of their switches get ranks j*N..j*N+N-1. Rotating the upper half by slot spreads the
// slots over different links. With M <= N/2 a link between switches carries at most one exchange
// per step, with more members M/(N/2).
#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <utility>

#include "common/plan/planners/planner.h"
#include "common/plan/planners/rank_forest.h"

namespace phub::plan {
namespace {

struct BiGraph {
  std::vector<NodeIndex> upper, lower;                  // switches
  std::map<NodeIndex, std::vector<NodeIndex>> members;  // by switch
};

bool IsLinked(const Topology& topology, NodeIndex a, NodeIndex b) {
  return topology.FindLink(a, b).has_value() && topology.FindLink(b, a).has_value();
}

// The topology as a BiGraph; nullopt if it is not one.
std::optional<BiGraph> Recognize(const Topology& topology) {
  BiGraph graph;
  std::vector<NodeIndex> switches;
  for (std::uint32_t i = 0; i < topology.nodes().size(); ++i)
    if (!topology.IsMember(NodeIndex{i})) switches.push_back(NodeIndex{i});
  if (switches.size() < 2 || switches.size() % 2 != 0) return std::nullopt;
  // The first switch is in the upper half. Switches linked to it are in the lower half.
  for (const NodeIndex node : switches)
    (IsLinked(topology, switches[0], node) ? graph.lower : graph.upper).push_back(node);
  if (graph.upper.size() != graph.lower.size()) return std::nullopt;
  std::size_t links = 0;
  for (const NodeIndex up : graph.upper)
    for (const NodeIndex low : graph.lower) links += IsLinked(topology, up, low) ? 2 : 0;
  if (links != 2 * graph.upper.size() * graph.lower.size()) return std::nullopt;
  for (const NodeIndex member : topology.members()) {
    const auto out = topology.OutLinks(member);
    if (out.size() != 1 || topology.InLinks(member).size() != 1) return std::nullopt;
    const NodeIndex hub = topology.link(out[0]).to;
    if (topology.IsMember(hub) || !IsLinked(topology, hub, member)) return std::nullopt;
    graph.members[hub].push_back(member);
    links += 2;
  }
  if (links != topology.links().size() || graph.members.size() != switches.size())
    return std::nullopt;
  for (const auto& [node, list] : graph.members)
    if (list.size() != graph.members.begin()->second.size()) return std::nullopt;
  return graph;
}

absl::Status HdrmApplies(const Topology& topology) {
  const std::optional<BiGraph> graph = Recognize(topology);
  if (!graph)
    return absl::FailedPreconditionError(
        "not a BiGraph: it needs two equal halves of switches, a link between any two switches of "
        "different halves, and the same number of members on each switch");
  if (!std::has_single_bit(graph->upper.size()) ||
      !std::has_single_bit(graph->members.begin()->second.size()))
    return absl::FailedPreconditionError(
        "the number of switches and of members per switch must be powers of two");
  return CheckEdges(topology);
}

bool IsOdd(std::size_t number) { return std::popcount(number) % 2 != 0; }

// Rank -> member.
std::vector<NodeIndex> MapRanks(const BiGraph& graph) {
  const std::size_t half = graph.upper.size();
  const std::size_t switch_count = 2 * half;
  const std::size_t slots = graph.members.begin()->second.size();
  std::vector<NodeIndex> order(slots * switch_count);
  for (std::size_t slot = 0; slot < slots; ++slot) {
    for (std::size_t i = 0; i < half; ++i) {
      std::size_t up = 2 * i, low = 2 * i + 1;
      if (IsOdd(i) != IsOdd(slot)) std::swap(up, low);
      const std::size_t rotated = (i + slot) % half;
      order[slot * switch_count + up] = graph.members.at(graph.upper[rotated])[slot];
      order[slot * switch_count + low] = graph.members.at(graph.lower[i])[slot];
    }
  }
  return order;
}

absl::StatusOr<Forest> PlanHdrm(const Topology& topology, const PlannerOptions&) {
  return HalvingDoublingForest(topology, "hdrm", MapRanks(*Recognize(topology)));
}

}  // namespace

Planner HdrmPlanner() {
  return {"hdrm", "halving-doubling with the rank mapping of EFLOPS; for BiGraph topologies",
          HdrmApplies, PlanHdrm};
}

}  // namespace phub::plan
