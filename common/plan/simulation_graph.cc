#include "common/plan/simulation_graph.h"

namespace phub::plan {

SimulationGraph::SimulationGraph(const Topology& topology, const Forest& forest)
    : queue_count(static_cast<std::uint32_t>(topology.links().size())),
      reduce_gate_(topology.nodes().size(), kNoGate),
      gather_gate_(topology.nodes().size(), kNoGate) {
  edges.reserve(EdgeCount(forest));
  for (std::uint32_t tree = 0; tree < forest.trees.size(); ++tree) AddTree(forest, tree);
  // Group the edges by the gate that they wait for.
  for (const GraphEdge& edge : edges)
    if (edge.gate_in != kNoGate) ++gates[edge.gate_in].edge_count;
  std::uint32_t first = 0;
  for (Gate& gate : gates) {
    gate.first_edge = first;
    first += gate.edge_count;
    gate.edge_count = 0;
  }
  opened.resize(first);
  for (std::uint32_t i = 0; i < edges.size(); ++i) {
    if (edges[i].gate_in == kNoGate) continue;
    Gate& gate = gates[edges[i].gate_in];
    opened[gate.first_edge + gate.edge_count++] = i;
  }
}

void SimulationGraph::AddTree(const Forest& forest, std::uint32_t tree) {
  const std::size_t first_edge = edges.size();
  for (const bool reduces : {true, false}) {
    const std::vector<Edge>& list = reduces ? forest.trees[tree].reduce : forest.trees[tree].gather;
    for (std::uint32_t i = 0; i < list.size(); ++i)
      // A link has only one sender: the link's index identifies the sender's queue.
      edges.push_back({tree, i, reduces, list[i].step,
                       forest.paths[list[i].path.value].front().value, kNoGate, kNoGate,
                       list[i].from, list[i].to, list[i].path});
  }
  AddGates(forest.trees[tree], first_edge);
}

void SimulationGraph::AddGates(const Tree& tree, std::size_t first_edge) {
  const auto gate_of = [&](std::vector<std::uint32_t>& gates_by_node, NodeIndex node) {
    std::uint32_t& gate = gates_by_node[node.value];
    if (gate == kNoGate) {
      gate = static_cast<std::uint32_t>(gates.size());
      gates.emplace_back();
    }
    return gate;
  };
  gather_gate_[tree.home.value] = gate_of(reduce_gate_, tree.home);
  gates[reduce_gate_[tree.home.value]].is_home = true;
  for (std::size_t i = first_edge; i < edges.size(); ++i) {
    GraphEdge& edge = edges[i];
    edge.gate_out = gate_of(edge.reduces ? reduce_gate_ : gather_gate_, edge.to);
    ++gates[edge.gate_out].waits_for;
  }
  for (std::size_t i = first_edge; i < edges.size(); ++i) {
    GraphEdge& edge = edges[i];
    edge.gate_in = (edge.reduces ? reduce_gate_ : gather_gate_)[edge.from.value];
  }
  for (std::size_t i = first_edge; i < edges.size(); ++i)
    for (const NodeIndex node : {edges[i].from, edges[i].to})
      reduce_gate_[node.value] = gather_gate_[node.value] = kNoGate;
  reduce_gate_[tree.home.value] = gather_gate_[tree.home.value] = kNoGate;
}

}  // namespace phub::plan
