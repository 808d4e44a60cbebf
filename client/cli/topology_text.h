// How phubctl shows a topology of racks, and when it was measured. Pure functions but for the age.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/plan/topology.h"

namespace phub::client::cli {

std::string AgeText(std::int64_t unix_ns);  // until now, in whole seconds
// "{0 3 5} {1 2 4} on 16 links": which racks are at one switch. json: phub.topology.v1.
std::string BriefTopologyText(std::string_view json);
// The switches with their racks, and every link; a line each.
std::string TopologySwitchesText(const plan::Topology& topology);

}  // namespace phub::client::cli
