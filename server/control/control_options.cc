#include "server/control/control_options.h"

#include <fmt/core.h>

namespace phub::server {

std::string ControlOptions::DescribeRack(RackIndex rack) const {
  return fmt::format("{} {} ({})", rack.value < racks_with_ranks() ? "rack" : "aggregator",
                     rack.value, racks[rack.value]);
}

}  // namespace phub::server
