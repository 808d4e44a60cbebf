// The dependencies of a simulation: the forest's edges with their gates and send queues. Immutable
// after construction. Part of the simulator.
#pragma once

#include <cstdint>
#include <vector>

#include "common/plan/forest.h"
#include "common/plan/topology.h"

namespace phub::plan {

// A gate opens for a piece when `waits_for` transfers of the piece have arrived; the edges behind
// it then have their data. Every vertex has a gate per phase; the home has one gate for both.
struct Gate {
  std::uint32_t waits_for = 0;
  bool is_home = false;
  std::uint32_t first_edge = 0;  // index into SimulationGraph::opened
  std::uint32_t edge_count = 0;
};

struct GraphEdge {
  std::uint32_t tree = 0;
  std::uint32_t index = 0;  // within the tree's phase
  bool reduces = false;
  std::uint32_t step = 0;
  std::uint32_t queue = 0;     // the sender's queue for the first link
  std::uint32_t gate_in = 0;   // the gate it waits for; kNoGate: ready from the start
  std::uint32_t gate_out = 0;  // the gate that counts its arrival; kNoGate: none
  NodeIndex from;
  NodeIndex to;
  PathIndex path;
};

struct SimulationGraph {
  static constexpr std::uint32_t kNoGate = ~std::uint32_t{0};

  SimulationGraph(const Topology& topology, const Forest& forest);

  std::vector<GraphEdge> edges;
  std::vector<Gate> gates;
  std::vector<std::uint32_t> opened;  // edges, grouped by gate
  std::uint32_t queue_count = 0;

 private:
  void AddTree(const Forest& forest, std::uint32_t tree);
  void AddGates(const Tree& tree, std::size_t first_edge);

  std::vector<std::uint32_t> reduce_gate_, gather_gate_;  // by node, for the current tree
};

}  // namespace phub::plan
