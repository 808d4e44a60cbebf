// How Control has the ways between all racks measured. Implemented by
// server/control/rpc/rack_surveyor.h with probes between live daemons.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/plan/topology.h"

namespace phub::server {

struct MeasuredTopology {
  std::shared_ptr<const plan::Topology> topology;  // member r is rack r
  std::int64_t unix_ns = 0;                        // when
};

// What is said of the racks' topology, where it is measured.
struct TopologyState {
  bool is_measured = false;   // else it is configured
  MeasuredTopology measured;  // null: nothing is yet, or this is not rack 0
  std::string state;          // for people
};

// Called with Control's lock held; must return at once and must not call back into Control.
class Surveyor {
 public:
  virtual ~Surveyor() = default;
  // Answered by Control::OnSurvey, once, unless the daemon stops.
  virtual void Begin() = 0;
};

}  // namespace phub::server
