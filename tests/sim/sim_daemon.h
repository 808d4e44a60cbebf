// A daemon of the simulation: the product's Control and CoreLoops over simulated transports, one
// network node per core loop. One thread; the cluster decides who runs next.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "server/control/control.h"
#include "server/core_loop.h"
#include "tests/sim/sim_network.h"
#include "tests/sim/sim_transport.h"

namespace phub::sim {

class SimDaemon {
 public:
  // Nodes [first_node, first_node + core_count) are this daemon's.
  SimDaemon(SimNetwork& network, Random& random, NodeId first_node, std::uint32_t core_count);

  std::uint32_t core_count() const { return static_cast<std::uint32_t>(loops_.size()); }
  NodeId node(std::uint32_t core) const { return first_node_ + core; }
  server::Control& control() { return *control_; }
  bool RunCore(std::uint32_t core);  // one RunOnce; true if it did anything
  void RunControl();                 // one Poll
  std::uint64_t Count(server::CoreCounter counter) const;

 private:
  const NodeId first_node_;
  std::vector<std::unique_ptr<SimTransport>> transports_;
  std::vector<std::unique_ptr<server::CoreLoop>> loops_;
  std::unique_ptr<server::Control> control_;
};

}  // namespace phub::sim
