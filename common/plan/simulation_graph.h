// What waits for what in a simulation: the forest's edges with their gates and send queues. Built
// once, then only read. Part of the simulator.
#pragma once

#include <cstdint>
#include <vector>

#include "common/plan/forest.h"
#include "common/plan/topology.h"

namespace phub::plan {

// A gate opens, for each piece, when as many transfers have come in as it waits for; then the
// edges behind it have their data. One for every vertex and phase, the home's joins both.
struct Gate {
  std::uint32_t waits_for = 0;
  bool is_home = false;
  std::uint32_t first_edge = 0;  // into SimulationGraph::opened
  std::uint32_t edge_count = 0;
};

struct GraphEdge {
  std::uint32_t tree = 0;
  std::uint32_t index = 0;  // within its phase
  bool reduces = false;
  std::uint32_t step = 0;
  std::uint32_t queue = 0;     // its sender's for its first link
  std::uint32_t gate_in = 0;   // kNoGate: ready from the start
  std::uint32_t gate_out = 0;  // where it counts when it arrives; kNoGate: nobody waits
  NodeIndex from;
  NodeIndex to;
  PathIndex path;
};

struct SimulationGraph {
  static constexpr std::uint32_t kNoGate = ~std::uint32_t{0};

  SimulationGraph(const Topology& topology, const Forest& forest);

  std::vector<GraphEdge> edges;
  std::vector<Gate> gates;
  std::vector<std::uint32_t> opened;  // edges by gate
  std::uint32_t queue_count = 0;

 private:
  void AddTree(const Forest& forest, std::uint32_t tree);
  void AddGates(const Tree& tree, std::size_t first_edge);

  std::vector<std::uint32_t> reduce_gate_, gather_gate_;  // by node, of the current tree
};

}  // namespace phub::plan
