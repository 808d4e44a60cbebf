// Random topologies for property tests and for trying planners: connected, links both ways, small
// whole capacities. The same for equal options, on every platform.
#pragma once

#include <cstdint>

#include "common/plan/topology_builder.h"

namespace phub::plan {

struct RandomTopologyOptions {
  std::int64_t members = 8;
  std::int64_t switches = 2;  // 0: members are connected to each other and forward
  std::uint64_t seed = 1;
  bool aggregate = false;
};

void BuildRandomTopology(const RandomTopologyOptions& options, TopologyBuilder& builder);

}  // namespace phub::plan
