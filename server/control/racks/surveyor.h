// How Control measures the network between all racks. Implemented by
// server/control/rpc/rack_surveyor.h with probes between running daemons.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/plan/topology.h"

namespace phub::server {

struct MeasuredTopology {
  std::shared_ptr<const plan::Topology> topology;  // member r is rack r
  std::int64_t unix_ns = 0;                        // when it was measured
};

// The state of the racks' topology, for reports.
struct TopologyState {
  bool is_measured = false;   // false: it is configured
  MeasuredTopology measured;  // null: not measured yet, or this is not rack 0
  std::string state;          // for humans
};

// Called with Control's lock held; must return at once and must not call back into Control.
class Surveyor {
 public:
  virtual ~Surveyor() = default;
  // Starts a survey. It is answered by one call of Control::OnSurvey, unless the daemon stops.
  virtual void Begin() = 0;
};

}  // namespace phub::server
