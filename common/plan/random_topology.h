// Random topologies for tests and for evaluating planners: connected, with links in both directions
// and small integer capacities. Deterministic for given options, on every platform.
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
